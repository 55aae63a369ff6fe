"""Gradients that are there."""

from torch import Tensor


def grad_of(leaf: Tensor) -> Tensor:
    """The gradient of a leaf, which a backward pass has reached."""
    assert leaf.grad is not None
    return leaf.grad
