"""What the input contributes: the product, its gradients, and autocast."""

import pytest
import torch

import cayley
from cayley.kernels.projection import project, projected_under_autocast, projection_gradients


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_gradients_are_those_of_autograd(packed: bool, bias: bool) -> None:
    shape = (7,) if packed else (4, 3)
    x, U = torch.randn(*shape, 2, requires_grad=True), torch.randn(5, 2, requires_grad=True)
    c = torch.randn(5, requires_grad=True) if bias else None
    delta = torch.randn(*shape, 5)
    leaves = [tensor for tensor in (x, U, c) if tensor is not None]
    expected = torch.autograd.grad(project(x, U, c), leaves, delta)
    found = projection_gradients(delta, x, U, ("x", "U", "c") if bias else ("x", "U"))
    assert (found["c"] is None) == (not bias)
    torch.testing.assert_close([v for v in found.values() if v is not None], list(expected))


def test_gradients_of_networks() -> None:
    delta, x, U = torch.randn(3, 5, 2, 8), torch.randn(5, 2, 4), torch.randn(3, 8, 4)
    found = projection_gradients(delta, x.expand(3, 5, 2, 4), U, ("x", "U", "c"))
    for g in range(3):
        own = projection_gradients(delta[g], x, U[g], ("x", "U", "c"))
        for name, gradient in own.items():
            of_all = found[name]
            assert of_all is not None
            torch.testing.assert_close(of_all[g], gradient)


def test_unwanted_gradients_are_not_computed() -> None:
    x, U, delta = torch.randn(4, 3, 2), torch.randn(5, 2), torch.randn(4, 3, 5)
    assert projection_gradients(delta, x, U, ()) == {"x": None, "U": None, "c": None}
    assert projection_gradients(delta, x, None, ("x",)) == {"x": delta}


def test_autocast_rounds_the_contribution_only() -> None:
    x, U, c = torch.randn(4, 3, 2).float(), torch.randn(5, 2).float(), torch.randn(5).float()
    assert projected_under_autocast(x, U, c) == (x, U, c)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        projected, *rest = projected_under_autocast(x, U, c)
        rounded = project(x, U, c)
    assert rest == [None, None]
    assert (rounded.dtype, projected.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(projected, rounded.float())


@pytest.mark.parametrize("make", [cayley.ScoRNN, cayley.NCGRU, cayley.LSTM])
def test_a_layer_under_autocast_is_its_recurrence_of_the_rounded_contribution(make: type) -> None:
    layer, x = make(2, 6).float(), torch.randn(5, 3, 2).float()
    exact = layer(x)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)[0]
    assert y.dtype == torch.float32
    assert not torch.equal(y, exact)
    assert (y - exact).norm() < 0.02 * exact.norm()
