"""The rule for the recurrent layers of this package."""

from typing import Any

import pytest
import torch
from preconditioners.explicit import backward, gradients, preconditioned
from torch import Tensor
from variants import NETWORKS

import cayley
from cayley.parametrizations import ScaledCayley
from cayley.preconditioners import BNP

# what has no kernel says so once
pytestmark = pytest.mark.filterwarnings("ignore:.*it has no normalisation for an Elman recurrence")

EPS, T, B, INPUT, H = 0.05, 6, 5, 3, 8


def inner(before: dict[str, Tensor], after: dict[str, Tensor]) -> float:
    return float(sum((before[name].conj() * after[name]).sum().real for name in before))


def run(layer: Any) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor, Tensor, BNP]:
    """Gradients before and after, the inputs and the states before the steps as rows."""
    bnp = BNP(layer, eps=EPS)
    x = torch.randn(T, B, INPUT) + 1
    output, _ = layer(x)
    backward(output)
    before = gradients(layer)
    bnp.step()
    h0 = torch.zeros_like(output[:1])
    if layer.trainable_h0:
        h0 = layer.h0_l0.expand(1, B, -1)
    h = torch.cat((h0, output[:-1])).detach()
    return before, gradients(layer), x.flatten(0, 1), h.flatten(0, 1), bnp


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_descends_and_reports_every_parameter(name: str) -> None:
    layer = NETWORKS[name](INPUT, H)
    before, after, _, _, bnp = run(layer)
    assert inner(before, after) > 0
    assert any(not torch.equal(before[key], after[key]) for key in before)
    report = bnp.report()
    assert list(report) == [key for key, _ in layer.named_parameters()]
    for key, text in report.items():
        served = text.startswith("Recurrent: [")
        changed = not torch.equal(before[key], after[key])
        assert served == changed or not before[key].any(), (key, text)
        assert text != "its weight is not preconditioned", key
    assert report["weight_ih_l0"].startswith("Recurrent: [")


@pytest.mark.parametrize("name", ["ScoRNN", "ScuRNN", "EURNN", "FullURNN", "ExpRNN", "URNN"])
def test_behind_modrelu_U_is_scaled_and_the_rest_is_left(name: str) -> None:
    before, after, x, _, bnp = run(NETWORKS[name](INPUT, H))
    for key in before:
        if key == "weight_ih_l0":
            _, (U,) = preconditioned(None, [before[key]], [x], EPS)
            torch.testing.assert_close(after[key], U, rtol=1e-12, atol=1e-12)
        else:
            assert torch.equal(after[key], before[key])
    assert "threshold" in bnp.report()["bias_l0"]
    free = next(text for key, text in bnp.report().items() if key.startswith("structured"))
    assert "could ascend" in free


@pytest.mark.parametrize("name", ["ORNN", "SpectralRNN", "RNN-cayley-relu"])
def test_an_additive_bias_is_centred_with_U(name: str) -> None:
    before, after, x, _, _ = run(NETWORKS[name](INPUT, H))
    b, (U,) = preconditioned(before["bias_l0"], [before["weight_ih_l0"]], [x], EPS)
    torch.testing.assert_close(after["weight_ih_l0"], U, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(after["bias_l0"], b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["RNN", "LSTM"])
def test_free_matrices_form_one_block(name: str) -> None:
    before, after, x, h, _ = run(NETWORKS[name](INPUT, H))
    b, (U, W) = preconditioned(
        before["bias_ih_l0"], [before["weight_ih_l0"], before["weight_hh_l0"]], [x, h], EPS
    )
    torch.testing.assert_close(after["weight_ih_l0"], U, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(after["weight_hh_l0"], W, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(after["bias_ih_l0"] + after["bias_hh_l0"], b, rtol=1e-12, atol=1e-12)


def test_free_matrix_behind_modrelu_is_not_centred() -> None:
    before, after, x, h, _ = run(cayley.RNN(INPUT, H, nonlinearity="modrelu"))
    for key, rows in (("weight_ih_l0", x), ("weight_hh_l0", h)):
        _, (W,) = preconditioned(None, [before[key]], [rows], EPS)
        torch.testing.assert_close(after[key], W, rtol=1e-12, atol=1e-12)
    assert torch.equal(after["bias_l0"], before["bias_l0"])


@pytest.mark.parametrize("name", ["LSTM-layer", "LSTM-atn", "LSTM-batch"])
def test_normalised_lstm_has_two_blocks(name: str) -> None:
    before, after, x, h, bnp = run(NETWORKS[name](INPUT, H))
    for kind, rows in (("ih", x), ("hh", h)):
        W, b = f"weight_{kind}_l0", f"bias_{kind}_l0"
        expected_b, (expected,) = preconditioned(before[b], [before[W]], [rows], EPS)
        torch.testing.assert_close(after[W], expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(after[b], expected_b, rtol=1e-12, atol=1e-12)
    assert bnp.report()["gamma_hh_l0"] == "it belongs to a normalisation"


def test_a_bias_behind_the_normalisation_centres_nothing() -> None:
    before, after, x, h, bnp = run(cayley.LSTM(INPUT, H, norm="layer", bias_inside=False))
    for key, rows in (("weight_ih_l0", x), ("weight_hh_l0", h)):
        _, (W,) = preconditioned(None, [before[key]], [rows], EPS)
        torch.testing.assert_close(after[key], W, rtol=1e-12, atol=1e-12)
    assert bnp.report()["bias_l0"] == "it is added behind the normalisation"


@pytest.mark.parametrize("nonlinearity", ["relu", "modrelu"])
def test_the_coupling_of_enrnn_joins_the_long_rows(nonlinearity: str) -> None:
    q = 5
    layer = cayley.ENRNN(INPUT, q, H - q, nonlinearity=nonlinearity)
    before, after, x, h, _ = run(layer)
    C = "structured.weight_hh_l0.C"
    bias = before["bias_l0"] if nonlinearity == "relu" else None
    b, (U, new_C) = preconditioned(
        None if bias is None else bias[:q],
        [before["weight_ih_l0"][:q], before[C]],
        [x, h[:, q:]],
        EPS,
    )
    torch.testing.assert_close(after["weight_ih_l0"][:q], U, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(after[C], new_C, rtol=1e-12, atol=1e-12)
    short, (U,) = preconditioned(
        None if bias is None else bias[q:], [before["weight_ih_l0"][q:]], [x], EPS
    )
    torch.testing.assert_close(after["weight_ih_l0"][q:], U, rtol=1e-12, atol=1e-12)
    if bias is not None:
        torch.testing.assert_close(after["bias_l0"], torch.cat((b, short)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("nonlinearity", ["modrelu", "tanh"])
@pytest.mark.parametrize("orthogonal", [(), ("candidate",), ("reset",), ("reset", "candidate")])
def test_gates_of_ncgru(orthogonal: tuple[str, ...], nonlinearity: str) -> None:
    layer = cayley.NCGRU(INPUT, H, orthogonal=orthogonal, nonlinearity=nonlinearity)
    before, after, x, h, bnp = run(layer)
    U_r, U_h = layer.weight_ih_l0[:H], layer.weight_hh_l0[:H]
    r = (x @ U_r.T + h @ U_h.T + layer.bias_l0[:H]).sigmoid().detach()
    for k, gate in enumerate(("reset", "update", "candidate")):
        part = slice(k * H, (k + 1) * H)
        own, rows = [("weight_ih_l0", part)], [x]
        if not orthogonal:
            own.append(("weight_hh_l0", part))
            rows.append(r * h if gate == "candidate" else h)
        elif gate == "update" or (gate == "reset" and "reset" not in orthogonal):
            own.append((f"structured.weight_hh_l0.{gate}", slice(None)))
            rows.append(h)
        additive = gate != "candidate" or nonlinearity == "tanh"
        b, Ws = preconditioned(
            before["bias_l0"][part] if additive else None,
            [before[key][s] for key, s in own],
            rows,
            EPS,
        )
        for (key, s), W in zip(own, Ws, strict=True):
            torch.testing.assert_close(after[key][s], W, rtol=1e-12, atol=1e-12)
        expected = b if additive else before["bias_l0"][part]
        torch.testing.assert_close(after["bias_l0"][part], expected, rtol=1e-12, atol=1e-12)
    if orthogonal == ("reset",):
        assert "r ⊙ h" in bnp.report()["structured.weight_hh_l0.candidate"]


def test_preconditioning_a_structured_matrix_could_ascend() -> None:
    """The symmetric part of J Jᵀ P Pᵀ, why structured matrices are left alone."""
    map = ScaledCayley(4)
    (A,) = map.sample()
    J = torch.func.jacrev(map)(A).flatten(0, 1)
    D = torch.diag(torch.rand(4).add(0.5).repeat(4))
    K = J @ J.T @ D
    assert torch.linalg.eigvalsh(K + K.T).min() < -1e-3
    even = J @ J.T * 3
    assert torch.linalg.eigvalsh(even + even.T).min() > -1e-9


def test_both_directions_and_the_trained_initial_state() -> None:
    layer = cayley.RNN(INPUT, H, bidirectional=True, trainable_h0=True)
    torch.nn.init.normal_(layer.h0_l0)
    torch.nn.init.normal_(layer.h0_l0_reverse)
    bnp = BNP(layer, eps=EPS)
    x = torch.randn(T, B, INPUT)
    output, _ = layer(x)
    backward(output)
    before = gradients(layer)
    bnp.step()
    after = gradients(layer)
    forth, back = output.detach().chunk(2, -1)
    rows = {
        "l0": torch.cat((layer.h0_l0.expand(1, B, -1), forth[:-1])),
        "l0_reverse": torch.cat((back[1:], layer.h0_l0_reverse.expand(1, B, -1))),
    }
    for suffix, h in rows.items():
        names = [f"weight_ih_{suffix}", f"weight_hh_{suffix}"]
        _, Ws = preconditioned(
            before[f"bias_ih_{suffix}"],
            [before[name] for name in names],
            [x.flatten(0, 1), h.detach().flatten(0, 1)],
            EPS,
        )
        for name, W in zip(names, Ws, strict=True):
            torch.testing.assert_close(after[name], W, rtol=1e-12, atol=1e-12)
        assert torch.equal(after[f"h0_{suffix}"], before[f"h0_{suffix}"])
    assert bnp.report()["h0_l0"] == "an initial state, which multiplies nothing"


def test_a_layer_that_runs_otherwise_is_not_served() -> None:
    class Other(cayley.RNN):
        def run(self, suffix: str, x: Tensor, *rest: Any, **more: Any) -> Any:
            return super().run(suffix, 2 * x, *rest, **more)

    model = torch.nn.ModuleList((cayley.RNN(INPUT, H), Other(INPUT, H)))
    assert BNP(model).report()["1.weight_ih_l0"] == "Other has a forward of its own"


def test_stacked_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="num_layers=1, got 2"):
        BNP(cayley.ScoRNN(INPUT, H, num_layers=2))
