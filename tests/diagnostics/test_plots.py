"""Every picture is drawn from what its diagnostic returns."""

import re
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import pytest
import torch
from processes import run_after_torch
from torch import Tensor, nn

import cayley
from cayley import diagnostics
from cayley.diagnostics import (
    Recorder,
    activation_surface,
    complex_grid,
    condition_numbers,
    eigenvalue_normalisation,
    formation_seconds,
    gradient_norms,
    hidden_statistics,
    jacobian_heatmap,
    lanczos,
    moments,
    neumann_errors,
    nonfinite_counts,
    orthogonality_error,
    plots,
    recurrent_matrices,
    scaling_angles,
    spectrum,
)
from cayley.parametrizations import Skew

matplotlib = pytest.importorskip("matplotlib", reason="plots need the extra lab")

# a product, a context, and the number of a step
NO_VALUES = {"gauss_newton_product", "hessian_product", "watched", "first_nonfinite"}

T, B, I, N = 6, 4, 3, 8  # noqa: E741


@pytest.fixture(autouse=True)
def no_screen() -> Iterator[None]:
    matplotlib.use("Agg")
    from matplotlib import pyplot

    yield
    pyplot.close("all")


def drawn(axes: object) -> None:
    from matplotlib.axes import Axes

    assert isinstance(axes, Axes)
    axes.figure.canvas.draw()


def heights(line: Any) -> list[float]:
    return [*line.get_ydata()]


def widths(axes: Any) -> list[float]:
    """Of bars."""
    return [bar.get_width() for bar in axes.patches]


def test_recurrences() -> None:
    layer, x = cayley.LSTM(I, N, norm="layer"), torch.randn(T, B, I)
    norms = gradient_norms(layer, lambda: layer(x)[0].sum())
    axes = plots.plot_gradient_norms(norms)
    drawn(axes)
    (line,) = axes.get_lines()
    assert torch.tensor(line.get_ydata()).shape == (T + 1,)
    drawn(plots.plot_gradient_norms({"mean": norms["l0"].mean(1)}, axes))
    assert len(axes.get_lines()) == 2
    heat = jacobian_heatmap(layer, x)
    axes = plots.plot_heatmap(heat)
    drawn(axes)
    torch.testing.assert_close(torch.tensor(axes.get_images()[0].get_array()), heat)
    drawn(plots.plot_moments(hidden_statistics(layer, lambda: layer(x))))


def test_matrices() -> None:
    layer = cayley.ScuRNN(I, N)
    drawn(plots.plot_spectrum(spectrum(layer.weight_hh_l0)))
    drawn(plots.plot_angles(scaling_angles(layer)["weight_hh_l0"]))
    drawn(
        plots.plot_formation_seconds(formation_seconds(["cayley"], [2, 4], repeat=1), ["a"], [2, 4])
    )
    path = torch.stack([(1 + 1e-2 * t) * Skew(4)(*Skew(4).sample()) for t in range(4)])
    drawn(plots.plot_neumann(neumann_errors(path, repeat=1)))


def test_numbers_of_matrices_are_those_of_the_picture() -> None:
    found = spectrum(torch.diag(torch.tensor([3.0, -1.0, 2.0])))
    axes = plots.plot_singular_values({"W": found})
    drawn(axes)
    (line,) = axes.get_lines()
    assert heights(line) == pytest.approx([3.0, 2.0, 1.0])
    errors = {"W": orthogonality_error(2 * torch.eye(2)), "I": orthogonality_error(torch.eye(2))}
    axes = plots.plot_orthogonality(errors)
    drawn(axes)
    assert widths(axes) == pytest.approx([3 * 2**0.5, 1e-18])
    W = torch.tensor([[0.0, 1.0], [-2.0, 0.0]])
    axes = plots.plot_matrix(W)
    drawn(axes)
    torch.testing.assert_close(torch.tensor(axes.get_images()[0].get_array()), W)
    drawn(plots.plot_matrix(recurrent_matrices(cayley.ScuRNN(I, N))["weight_hh_l0"]))


def test_eigenvalue_normalisation() -> None:
    layer = cayley.ENRNN(I, 5, 3)
    layer(torch.randn(T, B, I))
    found = eigenvalue_normalisation(layer)["weight_hh_l0"]
    axes = plots.plot_normalisation(found)
    drawn(axes)
    assert widths(axes) == found.events.tolist()
    assert axes.get_title() == f"ρ(T) = {float(found.radius):.4g}, not yet normalised"


def test_norms_and_values_that_are_not_finite() -> None:
    values = torch.tensor([[[3.0, 4.0]], [[0.0, 1.0]]])
    axes = plots.plot_norms({"h": moments(values)})
    drawn(axes)
    assert heights(axes.get_lines()[0]) == pytest.approx([5.0, 1.0])
    model = nn.Linear(2, 1)
    axes = plots.plot_nonfinite(nonfinite_counts(model))
    drawn(axes)
    assert axes.get_title() == "all values of 2 tensors are finite"
    with torch.no_grad():
        model.weight.fill_(torch.nan)
    axes = plots.plot_nonfinite(nonfinite_counts(model))
    assert widths(axes) == [2]


def test_approximate_eigenvalues() -> None:
    d = torch.tensor([1.0, 2.0, 5.0])
    axes = plots.plot_ritz(lanczos(lambda v: d * v, torch.ones(3)))
    drawn(axes)
    assert heights(axes.get_lines()[0]) == pytest.approx([1.0, 2.0, 5.0], rel=1e-5)


def test_every_function_has_a_plot() -> None:
    """The table of the docstring names all but those that give no values to draw."""
    assert plots.__doc__ is not None
    named = set(re.findall(r"``(\w+)``", plots.__doc__))
    assert {name for name in named if name.startswith("plot_")} == set(plots.__all__)
    functions = {
        name
        for name in diagnostics.__all__
        if isinstance(getattr(diagnostics, name), FunctionType) and name not in NO_VALUES
    }
    assert functions <= named


def test_surfaces() -> None:
    z = complex_grid(1.0, 9)
    surface = activation_surface("modrelu", z, 0.5)
    for of in ("value", "d_z", "d_conj"):
        drawn(plots.plot_surface(z, surface, of=of))
    line = torch.linspace(-1, 1, 9)
    curve = activation_surface("tanh", line)
    drawn(plots.plot_surface(line, curve, of="d_z"))
    with pytest.raises(ValueError, match=r"one of \['value', 'd_z'\].*got 'd_conj'"):
        plots.plot_surface(line, curve, of="d_conj")


def test_conditioning() -> None:
    layer, x = nn.Linear(I, 1), torch.randn(20, I)
    drawn(plots.plot_conditioning(condition_numbers(layer, lambda: layer(x).square().mean(), "")))


def test_records() -> None:
    layer = cayley.ENRNN(I, 5, 3)
    recorder = Recorder(layer, ["orthogonality", "spectrum", "normalisation"], every=1)
    for _ in range(2):
        with recorder.step():
            loss: Tensor = layer(torch.randn(T, B, I))[0].sum()
            loss.backward()
    drawn(plots.plot_records(recorder.records()))
    drawn(
        plots.plot_records({"a": recorder.records()["orthogonality/weight_hh_l0.long"]}, log=True)
    )


@pytest.mark.slow
def test_nothing_is_imported_before_a_picture_is_drawn() -> None:
    """And without matplotlib the error says what to install."""
    program = """
import sys
import cayley.diagnostics.plots as plots, torch
assert "matplotlib" not in sys.modules
sys.modules["matplotlib"] = None
try:
    plots.plot_heatmap(torch.zeros(2, 2))
except ModuleNotFoundError as error:
    assert "pip install 'cayley[lab]'" in str(error), error
else:
    raise AssertionError("a picture without matplotlib")
"""
    run_after_torch(program)
