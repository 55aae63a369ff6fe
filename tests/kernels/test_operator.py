"""Kernels run without their operator, except where a tracer has to see it."""

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from cayley.kernels.operator import at_once, differentiable_at_once


def square(x: Tensor, times: float) -> Tensor:
    return times * x * x


def operator(*_: object) -> Tensor:
    raise AssertionError("expected the kernel")


def save(ctx, inputs, output) -> None:
    x, ctx.times = inputs
    ctx.save_for_backward(x)


def differentiate(ctx, G: Tensor) -> tuple[Tensor, None]:
    assert ctx.needs_input_grad[:2] == (True, False)
    (x,) = ctx.saved_tensors
    return 2 * ctx.times * x * G, None


def test_runs_the_kernel_with_its_gradient() -> None:
    x = torch.randn(3, requires_grad=True)
    assert torch.equal(at_once(operator, {"cpu": square}, x, x, 2.0), square(x, 2.0))
    y = differentiable_at_once(operator, {"cpu": square}, save, differentiate, x, 2.0)
    assert torch.equal(y, square(x, 2.0))
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], 4 * x)


@pytest.mark.parametrize("kernels", [{}, {"cuda": square}])
def test_other_devices_have_the_operator(kernels: dict) -> None:
    x = torch.ones(1)
    with pytest.raises(AssertionError, match="expected the kernel"):
        at_once(operator, kernels, x, x, 2.0)
    with pytest.raises(AssertionError, match="expected the kernel"):
        differentiable_at_once(operator, kernels, save, differentiate, x, 2.0)


def test_tracers_see_the_operator() -> None:
    with FakeTensorMode(), pytest.raises(AssertionError, match="expected the kernel"):
        differentiable_at_once(
            operator, {"cpu": square}, save, differentiate, torch.ones(1, requires_grad=True), 2.0
        )
