"""Diagnostics of networks whose numbers are known."""

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import cayley
from cayley.diagnostics import DIAGNOSTICS
from cayley.lab.errors import RecipeError
from cayley.lab.studies.diagnosis import MEASURES, Diagnosis, Probe, diagnose

ANGLE = torch.tensor(0.3)


class Known:
    """A network and a loss of our own, as a probe."""

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        self.model, self.x = model, x

    def loss(self) -> Tensor:
        return self.model(self.x)[0][-1].sum()


def look(model: nn.Module, *names: str, T: int = 7) -> dict[str, Diagnosis]:
    probe = cast(Probe, Known(model, torch.randn(T, 3, 2)))
    return {one.name: one for one in diagnose(probe, names)}


@pytest.fixture
def rotation() -> nn.Module:
    layer = cayley.RNN(2, 2, recurrent="cayley", nonlinearity="identity")
    c, s = ANGLE.cos(), ANGLE.sin()
    layer.weight_hh_l0 = torch.stack((torch.stack((c, -s)), torch.stack((s, c))))
    return layer


def test_every_diagnostic_that_can_be_recorded_is_there() -> None:
    assert {*MEASURES} == {*DIAGNOSTICS, "heatmap"}


def test_the_gradients_of_a_rotation_neither_vanish_nor_explode(rotation: nn.Module) -> None:
    numbers = look(rotation, "gradient_norms")["gradient_norms"].numbers
    # the loss is the sum of both units of each of three examples
    assert numbers["l0 ‖∂L/∂h_T‖"] == pytest.approx(2**0.5, rel=1e-6)
    assert numbers["l0 first to last"] == pytest.approx(1.0, rel=1e-6)


def test_the_spectrum_of_a_rotation(rotation: nn.Module) -> None:
    found = look(rotation, "spectrum", "orthogonality")
    assert [*found] == ["spectrum", "orthogonality"]
    assert [*found["spectrum"].numbers.values()] == pytest.approx([1.0, 1.0, 1.0])
    assert found["orthogonality"].numbers["weight_hh_l0 ‖W*W − I‖"] < 1e-6


def test_a_rotation_forgets_no_input(rotation: nn.Module) -> None:
    """∂h_τ/∂x_t = W^(τ − t) U, whose norm is that of U however long ago the input was."""
    numbers = look(rotation, "heatmap")["heatmap"].numbers
    norm = float(torch.linalg.matrix_norm(rotation.get_parameter("weight_ih_l0").detach(), 2))
    assert [*numbers.values()] == pytest.approx([norm, norm], rel=1e-5)


def test_half_of_d_is_negative() -> None:
    numbers = look(cayley.ScoRNN(2, 8, negative_ones=4), "angles")["angles"].numbers
    assert numbers == {"weight_hh_l0 share of D with Re < 0": 0.5}


def test_values_that_are_not_finite_are_counted() -> None:
    layer = cayley.LSTM(2, 3)
    with torch.no_grad():
        layer.bias_hh_l0[:2] = torch.inf
    numbers = look(layer, "nonfinite")["nonfinite"].numbers
    assert numbers["bias_hh_l0 not finite"] == 2
    assert numbers["values that are not finite"] >= 2


@pytest.mark.parametrize(
    ("layer", "refused"),
    [
        (lambda: cayley.ENRNN(2, 4, 3), set()),
        (lambda: cayley.NCGRU(2, 4), {"normalisation"}),
        (lambda: cayley.LSTM(2, 4, norm="layer"), {"orthogonality", "angles", "normalisation"}),
        (lambda: nn.LSTM(2, 4), {*MEASURES} - {"nonfinite"}),
    ],
)
def test_what_a_network_serves_is_drawn_and_what_not_says_why(
    layer: Any, refused: set[str]
) -> None:
    found = look(layer())
    assert {name for name, one in found.items() if one.refusal} == refused
    for one in found.values():
        if one.refusal:
            assert one.refusal.startswith("expected a ")
            assert (one.numbers, one.draw) == ({}, None)
        else:
            assert one.numbers
            assert one.draw is not None
            one.draw().canvas.draw()


def test_what_is_asked_for_has_to_be_served() -> None:
    with pytest.raises(RecipeError, match=r"angles: expected a layer with a scaled Cayley.*ScoRNN"):
        look(cayley.LSTM(2, 4), "angles")
    with pytest.raises(RecipeError, match=r"expected a diagnostic of orthogonality, .*got 'angle'"):
        look(cayley.LSTM(2, 4), "angle")
