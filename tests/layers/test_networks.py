"""Parameter counts against the printed ones, and initial values, of every network."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from gradients import grad_of
from torch import nn

import cayley

# Rows of the documents: network, input and output size, count by the formula. An input map, the
# recurrence and an output map on its state, all with the biases that the formulas count.
COUNTS = [
    (cayley.ScoRNN, 170, {}, 1, 10, 16415),
    (cayley.ScoRNN, 360, {}, 1, 10, 68950),
    (cayley.ScoRNN, 512, {}, 1, 10, 136970),
    (cayley.URNN, 512, {}, 1, 10, 16394),
    (cayley.URNN, 2170, {}, 1, 10, 69450),
    (cayley.FullURNN, 116, {}, 1, 10, 16366),
    (cayley.FullURNN, 360, {}, 1, 10, 138610),
    (cayley.FullURNN, 512, {}, 1, 10, 274954),
    (cayley.ScuRNN, 116, {}, 1, 10, 16482),
    (cayley.ScuRNN, 250, {}, 1, 10, 69010),
    (cayley.ORNN, 256, {"reflections": 32}, 1, 10, 11034),
    # adding
    (cayley.ScoRNN, 170, {}, 2, 1, 15046),
    (cayley.FullURNN, 120, {}, 2, 1, 15481),
    (cayley.URNN, 950, {}, 2, 1, 15201),
    (cayley.ScuRNN, 116, {}, 2, 1, 14617),
    (cayley.ORNN, 128, {"reflections": 16}, 2, 1, 2569),
    # copying
    (cayley.ScoRNN, 190, {}, 10, 9, 21764),
    (cayley.FullURNN, 128, {}, 10, 9, 21641),
    (cayley.URNN, 470, {}, 10, 9, 22569),
    (cayley.ScuRNN, 130, {}, 10, 9, 22369),
    # speech frames
    (cayley.ScoRNN, 224, {}, 129, 129, 83121),
    (cayley.ScoRNN, 322, {}, 129, 129, 135208),
    (cayley.ScoRNN, 425, {}, 129, 129, 200304),
    (cayley.URNN, 158, {}, 129, 129, 83237),
    (cayley.URNN, 256, {}, 129, 129, 134785),
    (cayley.URNN, 378, {}, 129, 129, 198957),
    (cayley.FullURNN, 128, {}, 129, 129, 82945),
    (cayley.FullURNN, 192, {}, 129, 129, 136641),
    (cayley.FullURNN, 256, {}, 129, 129, 198529),
    (cayley.ScuRNN, 128, {}, 129, 129, 83073),
    (cayley.ScuRNN, 258, {}, 129, 129, 200853),
    # characters: the printed count leaves out the initial state, which is carried over there
    (cayley.ORNN, 512, {"reflections": 512, "trainable_h0": False}, 50, 50, 183090),
]


@pytest.mark.parametrize(("network", "n", "options", "m", "p", "count"), COUNTS)
def test_parameter_counts(
    network: type[cayley.RNN], n: int, options: dict, m: int, p: int, count: int
) -> None:
    layer = network(m, n, **options)
    output = nn.Linear(layer.output_size, p)
    assert sum(x.numel() for x in (*layer.parameters(), *output.parameters())) == count


@pytest.mark.parametrize(("n", "count"), [(116, 14858), (360, 133930), (512, 268298)])
def test_parameter_count_of_the_plain_network(n: int, count: int) -> None:
    """The formula counts one bias; nn.RNN, and so ours, has two, which act as one."""
    layer, output = cayley.RNN(1, n), nn.Linear(n, 10)
    assert sum(x.numel() for x in (*layer.parameters(), *output.parameters())) == count + n


def test_parameter_counts_without_a_printed_one() -> None:
    """expRNN as scoRNN; Spectral RNN and EURNN by their own formulas."""
    assert count(cayley.ExpRNN(1, 170)) == count(cayley.ScoRNN(1, 170))
    reflectors = sum(range(45, 61))
    assert count(cayley.SpectralRNN(2, 60)) == 2 * reflectors + 60 + 60 * 2 + 60
    rotations = 256 + 255
    assert count(cayley.EURNN(2, 512)) == 2 * rotations + 512 + 2 * 512 * 2 + 512
    assert count(cayley.EURNN(2, 512, layers="fft")) == 512 * 9 + 512 + 2 * 512 * 2 + 512


def count(layer: nn.Module) -> int:
    return sum(parameter.numel() for parameter in layer.parameters())


def test_scornn_starts_with_plane_rotations() -> None:
    n, rho = 12, 4
    layer: Any = cayley.ScoRNN(3, n, negative_ones=rho)
    W = layer.weight_hh_l0.detach()
    blocks = torch.stack([W[2 * j : 2 * j + 2, 2 * j : 2 * j + 2] for j in range(n // 2)])
    torch.testing.assert_close(torch.block_diag(*blocks), W)
    # e^{±it} with 0 ≤ t ≤ π/2 in the first blocks, its negative in those of the −1
    real = torch.linalg.eigvals(blocks).real
    assert (real[: (n - rho) // 2] >= 0).all()
    assert (real[(n - rho) // 2 :] <= 0).all()
    assert torch.linalg.det(W).item() == pytest.approx((-1) ** rho)
    assert layer.weight_ih_l0.abs().max() <= 0.01
    assert layer.bias_l0.abs().max() == 0
    assert layer.structured.weight_hh_l0.map.D.tolist() == [1.0] * 8 + [-1.0] * 4
    assert cayley.ScoRNN(3, 7, negative_ones=3).weight_hh_l0.det().item() == pytest.approx(-1)


def test_scurnn_reduces_to_scornn() -> None:
    """No imaginary part in A and θ of 0 or π: the same matrix."""
    n = 6
    real: Any = cayley.ScoRNN(2, n, negative_ones=2)
    unitary: Any = cayley.ScuRNN(2, n)
    entries = n * (n - 1) // 2
    with torch.no_grad():
        unitary.structured.weight_hh_l0.A.zero_()[:entries] = real.structured.weight_hh_l0.A
        unitary.structured.weight_hh_l0.theta.zero_()[-2:] = math.pi
    W = unitary.weight_hh_l0
    torch.testing.assert_close(W.real, real.weight_hh_l0)
    assert W.imag.abs().max() < 1e-15


@pytest.mark.parametrize("network", [cayley.ScuRNN, cayley.URNN, cayley.FullURNN])
def test_unitary_networks_start_as_published(network: type[cayley.RNN]) -> None:
    n, m = 50, 3
    layer = network(m, n)
    assert layer.weight_ih_l0.abs().max() <= math.sqrt(6 / (m + 2 * n))
    assert 0 < layer.bias_l0.abs().max() <= 0.01
    bound = 0.01 if network is cayley.ScuRNN else math.sqrt(3 / (2 * n))
    assert 0.5 * bound < layer.h0_l0.abs().max() <= bound


ELMAN = [kind for kind in cayley.layers.NETWORKS.values() if issubclass(kind, cayley.RNN)]


@pytest.mark.parametrize("network", ELMAN)
def test_initializers_go_over_those_of_the_network(network: Any) -> None:
    sizes = (3, 4, 4) if network is cayley.ENRNN else (3, 8)
    given = {"weight_ih": partial(nn.init.constant_, val=2.0), "h0": nn.init.ones_}
    layer = network(*sizes, trainable_h0=True, initializers=given)
    assert torch.equal(layer.weight_ih_l0, torch.full_like(layer.weight_ih_l0, 2.0))
    assert torch.equal(layer.h0_l0, torch.ones_like(layer.h0_l0))
    # what is not given stays the network's own
    torch.manual_seed(0)
    layer.reset_parameters()
    torch.manual_seed(0)
    plain = network(*sizes, initializers=None)
    biases = [name for name, _ in plain.named_parameters(recurse=False) if "bias" in name]
    for name in biases:
        assert (getattr(layer, name) == 0).all() == (getattr(plain, name) == 0).all()
    for wrong in ({"wieght_ih": nn.init.ones_}, {"bias": 3}, ["bias"]):
        with pytest.raises((TypeError, ValueError), match="initializers"):
            network(*sizes, initializers=wrong)


def test_negative_ones_out_of_range() -> None:
    for wrong in (-1, 9):
        with pytest.raises(ValueError, match=f"negative_ones from 0 to n = 8, got {wrong}"):
            cayley.ScoRNN(2, 8, negative_ones=wrong)


def test_patterns_that_cannot_serve_a_size() -> None:
    with pytest.raises(ValueError, match="power of two"):
        cayley.EURNN(2, 12, layers="fft")
    with pytest.raises(ValueError, match="at least 1"):
        cayley.ScoRNN(2, 8, bandwidth=0)
    with pytest.raises(ValueError, match="reflections"):
        cayley.ORNN(2, 8, reflections=0)
    for n in (1, 7):
        output, _ = cayley.EURNN(2, n, layers=3)(torch.randn(4, 2))
        assert output.shape == (4, 2 * n)


def test_exprnn_moves_its_base() -> None:
    layer: Any = cayley.ExpRNN(2, 9, num_layers=2)
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
    x = torch.randn(20, 4, 2)
    for _ in range(3):
        optimizer.zero_grad()
        layer(x)[0].square().mean().backward()
        optimizer.step()
    W, output = layer.weight_hh_l1.detach(), layer(x)[0].detach()
    layer.rebase_()
    assert layer.structured.weight_hh_l1.K.abs().max() == 0
    torch.testing.assert_close(layer.weight_hh_l1, W)
    torch.testing.assert_close(layer(x)[0], output)


def test_full_urnn_stays_unitary_under_its_optimiser() -> None:
    layer = cayley.FullURNN(2, 12)
    groups = cayley.parameter_groups(layer, lr=1e-3, recurrent_lr=1e-3)
    optimizer = cayley.optim.StiefelRMSprop(groups)
    before = layer.weight_hh_l0.detach().clone()
    for _ in range(20):
        optimizer.zero_grad()
        layer(torch.randn(10, 4, 2))[0].square().mean().backward()
        optimizer.step()
    W = layer.weight_hh_l0.detach()
    assert not torch.allclose(W, before)
    torch.testing.assert_close(W.mH @ W, torch.eye(12, dtype=W.dtype))


@pytest.mark.parametrize(
    ("options", "finite"),
    [
        ({"trainable_h0": False}, False),
        ({"trainable_h0": False, "initializers": {"bias": "zeros_"}}, True),
        ({"trainable_h0": False, "nonpositive_bias": True}, True),
        ({}, True),
    ],
)
def test_zeros_from_a_state_of_zero_make_the_gradient_overflow(
    options: dict[str, Any], finite: bool
) -> None:
    """As the dark pixels at the top of an image do; and each of the paper's remedies."""
    layer = cayley.ScuRNN(1, 16, dtype=torch.float32, **options)
    x = torch.zeros(150, 4, 1, dtype=torch.float32)
    x[130:] = torch.rand(20, 4, 1)
    output, _ = layer(x)
    assert output.isfinite().all()
    output[-1].square().sum().backward()
    found = {name: bool(grad_of(p).isfinite().all()) for name, p in layer.named_parameters()}
    assert found == dict.fromkeys(found, finite)
