"""Gradients that are there, and gradients that are right."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

# A wrong entry of an m × n Jacobian shows in a product with unit vectors as its error over √(mn),
# which is 10 to 100 here: the tolerances are 1000 times smaller than torch's for entries.
ATOL, RTOL = 1e-8, 1e-6


def grad_of(leaf: Tensor) -> Tensor:
    """The gradient of a leaf, which a backward pass has reached."""
    assert leaf.grad is not None
    return leaf.grad


def check_gradients(
    function: Callable[..., Any], inputs: Sequence[Tensor], rtol: float = RTOL
) -> None:
    """Compare each Jacobian with differences, along random directions."""
    assert gradcheck(function, tuple(inputs), fast_mode=True, atol=ATOL, rtol=rtol)


def check_second_gradients(function: Callable[..., Any], inputs: Sequence[Tensor]) -> None:
    """Compare each Jacobian of the gradients with differences, along random directions."""
    assert gradgradcheck(function, tuple(inputs), fast_mode=True, atol=ATOL, rtol=RTOL)
