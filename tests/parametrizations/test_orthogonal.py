"""Structured matrices on the weights of modules that are not ours."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import cayley
from cayley.parametrizations import MAPS, ScaledCayley, Skew, polar

REAL = [name for name in MAPS if not MAPS[name](4).is_complex]
COMPLEX = [name for name in MAPS if MAPS[name](4).is_complex]


def weight_of(name: str) -> nn.Linear:
    dtype = torch.complex128 if name in COMPLEX else torch.float64
    return nn.Linear(8, 8, dtype=dtype)


@pytest.mark.parametrize("name", MAPS)
def test_every_map_on_a_linear_layer(name: str) -> None:
    layer: Any = weight_of(name)
    cayley.orthogonal_(layer, "weight", map=name, init="sample")
    assert parametrize.is_parametrized(layer, "weight")
    map = layer.parametrizations.weight[0]
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
    x = torch.randn(4, 8, dtype=layer.bias.dtype)
    before = layer.weight.detach().clone()
    for _ in range(5):
        optimizer.zero_grad()
        layer(x).abs().sum().backward()
        optimizer.step()
    if not map.on_manifold:
        assert map.defect(layer.weight) <= 1e-12
    assert not torch.allclose(layer.weight, before)


@pytest.mark.parametrize("name", ["cayley", "exponential", "householder"])
def test_projects_the_weight_that_is_there(name: str) -> None:
    layer = weight_of(name)
    nearest = polar(layer.weight.detach())
    assert cayley.orthogonal_(layer, map=name) is layer
    torch.testing.assert_close(layer.weight, nearest)


def test_projects_singular_values_into_their_interval() -> None:
    layer = weight_of("svd")
    U, sigma, Vh = torch.linalg.svd(layer.weight.detach())
    cayley.orthogonal_(layer, map="svd")
    torch.testing.assert_close(layer.weight, U @ sigma.clamp(0.99, 1.01).diag() @ Vh)


def test_keeps_an_orthogonal_weight() -> None:
    layer = nn.Linear(8, 8)
    nn.init.orthogonal_(layer.weight)
    W = layer.weight.detach().clone()
    cayley.orthogonal_(layer)
    torch.testing.assert_close(layer.weight, W)


def test_takes_a_map_of_any_kind() -> None:
    for make in (
        ScaledCayley(8, negative_ones=3),
        ScaledCayley,
        partial(ScaledCayley, negative_ones=3),
    ):
        layer: Any = cayley.orthogonal_(nn.Linear(8, 8), map=make)
        torch.testing.assert_close(layer.weight @ layer.weight.T, torch.eye(8))
    skew: Any = cayley.orthogonal_(nn.Linear(8, 8), map=Skew(8))
    torch.testing.assert_close(skew.weight, -skew.weight.T)


def test_copies_the_map_that_it_is_given() -> None:
    map = ScaledCayley(6)
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    cayley.orthogonal_(first, map=map)
    W = first.weight.detach().clone()
    cayley.orthogonal_(second, map=map)
    assert torch.equal(first.weight, W)


def test_weight_can_be_assigned_and_saved() -> None:
    layer: Any = cayley.orthogonal_(nn.Linear(5, 5))
    W = torch.linalg.qr(torch.randn(5, 5))[0]
    layer.weight = W
    torch.testing.assert_close(layer.weight, W)
    twin: Any = cayley.orthogonal_(nn.Linear(5, 5))
    twin.load_state_dict(layer.state_dict())
    assert torch.equal(twin.weight, layer.weight)


def test_recurrent_weights_of_torch() -> None:
    rnn: Any = cayley.orthogonal_(nn.RNN(3, 8), "weight_hh_l0")
    twin = cayley.RNN(3, 8)
    twin.load_state_dict({name: getattr(rnn, name) for name in twin.state_dict()})
    x = torch.randn(5, 2, 3)
    torch.testing.assert_close(rnn(x), twin(x))
    rnn(x)[0].sum().backward()
    assert rnn.parametrizations.weight_hh_l0.original.grad.abs().sum() > 0


def test_dtype_and_device_follow_the_weight() -> None:
    layer = cayley.orthogonal_(nn.Linear(4, 4, dtype=torch.float32), map="householder")
    assert layer.weight.dtype == torch.float32


def test_refusals_say_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"'wieght' to be a parameter.*\['weight', 'bias'\]"):
        cayley.orthogonal_(nn.Linear(4, 4), "wieght")
    with pytest.raises(ValueError, match=r"square matrix, got \(4, 5\)"):
        cayley.orthogonal_(nn.Linear(5, 4))
    with pytest.raises(ValueError, match="one of the maps"):
        cayley.orthogonal_(nn.Linear(4, 4), map="nonsense")
    for wrong in (3, nn.Identity(), nn.ReLU):
        with pytest.raises(TypeError, match=r"expected a parametrisation, a function.*got"):
            cayley.orthogonal_(nn.Linear(4, 4), map=wrong)  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(ValueError, match="size 4, got one of size 5"):
        cayley.orthogonal_(nn.Linear(4, 4), map=ScaledCayley(5))
    with pytest.raises(TypeError, match="expected a complex weight"):
        cayley.orthogonal_(nn.Linear(4, 4), map="cayley_complex")
    with pytest.raises(ValueError, match='"project" or "sample"'):
        cayley.orthogonal_(nn.Linear(4, 4), init="nonsense")
    with pytest.raises(NotImplementedError, match="sample"):
        cayley.orthogonal_(nn.Linear(4, 4, dtype=torch.complex128), map="composition")
    layer = cayley.orthogonal_(nn.Linear(4, 4))
    with pytest.raises(ValueError, match="'weight' without a parametrisation"):
        cayley.orthogonal_(layer)


def test_a_weight_that_leaves_the_manifold_is_told() -> None:
    layer: Any = cayley.orthogonal_(nn.Linear(4, 4, dtype=torch.complex64), map="stiefel")
    x = torch.randn(3, 4, dtype=torch.complex64)
    for _ in range(9):
        layer(x)
    with torch.no_grad():
        layer.parametrizations.weight.original.mul_(2)
    with pytest.warns(UserWarning, match="W is no longer unitary"):
        layer(x)
    layer.eval()
    for _ in range(100):
        layer(x)
