"""Gradients that stand for many, for nodes whose kernels read the numbers of one."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack

__all__ = ["is_many", "one_by_one"]

# what autograd calls for the gradient of a node
Backward = Callable[..., tuple[Tensor | None, ...]]


def is_many(gradient: Tensor | None) -> bool:
    """Whether a tensor stands for many gradients; None, for no gradient, does not.

    Example:
        >>> x, seen = torch.zeros(2, requires_grad=True), []
        >>> y = 2 * x
        >>> handle = y.register_hook(lambda g: seen.append(is_many(g)))
        >>> found = torch.autograd.grad(y, x, torch.eye(2), is_grads_batched=True)
        >>> seen
        [True]
    """
    if gradient is None:
        return False
    return functorch.is_legacy_batchedtensor(gradient) or functorch.is_batchedtensor(gradient)


def one_by_one(backward: Backward, *, has_rule: bool = False) -> Backward:
    """The ``backward`` of an autograd function, called once for each of many gradients.

    ``torch.autograd.grad(is_grads_batched=True)``, and ``vmap`` of a function that calls
    ``torch.autograd.grad``, pass tensors without memory, each of which stands for many.

    Arguments:
        backward: The gradient of a node.
        has_rule: Whether it takes the tensors of ``vmap`` itself.

    Example:
        >>> class Double(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         return 2 * x
        ...     @staticmethod
        ...     @one_by_one
        ...     def backward(ctx, g):
        ...         return (torch.tensor([2 * number for number in g.tolist()]),)
        >>> x = torch.zeros(2, requires_grad=True)
        >>> torch.autograd.grad(Double.apply(x), x, torch.eye(2), is_grads_batched=True)
        (tensor([[2., 0.],
                [0., 2.]]),)
    """

    @wraps(backward)
    def run(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        # compiled autograd traces the backward pass of a single gradient
        if torch.compiler.is_compiling():
            return backward(ctx, *gradients)
        given = [g for g in gradients if g is not None]
        if (first := next(filter(functorch.is_legacy_batchedtensor, given), None)) is not None:
            level = _legacy_level(first)
            with _outside_legacy_vmap():
                stacks = [_legacy_stack(g, level) for g in gradients]
                found = [*_each(run, ctx, gradients, stacks)]
            return _wrapped(torch._add_batch_dim, found, level)
        if not has_rule and any(map(functorch.is_batchedtensor, given)):
            level = functorch.current_level()
            stacks = [_stack(g, level) for g in gradients]
            if any(stack is not None for stack in stacks):
                with temporarily_pop_interpreter_stack():
                    found = [*_each(run, ctx, gradients, stacks)]
                return _wrapped(functorch._add_batch_dim, found, level)
        return backward(ctx, *gradients)

    return run


@contextmanager
def _outside_legacy_vmap() -> Iterator[None]:
    """Context outside of what ``is_grads_batched`` uses, which forbids random numbers."""
    # a thread that autograd has for a GPU knows that it is inside, but not how deep
    depth = torch._C._vmapmode_increment_nesting()
    while torch._C._vmapmode_decrement_nesting():
        pass
    try:
        yield
    finally:
        for _ in range(depth - 1):
            torch._C._vmapmode_increment_nesting()


def _legacy_level(g: Tensor) -> int:
    """The level of a tensor of ``is_grads_batched``."""
    return next(level for level in count(1) if len(torch._remove_batch_dim(g, level, 0, 0)))


def _legacy_stack(g: Tensor | None, level: int) -> Tensor | None:
    """All gradients that a tensor of ``is_grads_batched`` stands for; None if it is only one."""
    if g is None or not functorch.is_legacy_batchedtensor(g):
        return None
    # the third argument is how many copies there are of a tensor that is only one
    return torch._remove_batch_dim(g, level, 0, 0)


def _stack(g: Tensor | None, level: int) -> Tensor | None:
    """All gradients that a tensor of ``vmap`` stands for; None if it is only one."""
    if g is None:
        return None
    values, dim = functorch._unwrap_batched(g, level)
    return None if dim is None else values.movedim(dim, 0)


def _each(
    run: Backward,
    ctx: Any,
    gradients: Sequence[Tensor | None],
    stacks: Sequence[Tensor | None],
) -> Iterator[Tensor | None]:
    """Each result of ``run`` for all gradients, stacked."""
    size = next(len(stack) for stack in stacks if stack is not None)
    pairs = [*zip(gradients, stacks, strict=True)]
    found = [run(ctx, *(g if s is None else s[k] for g, s in pairs)) for k in range(size)]
    for results in zip(*found, strict=True):
        yield None if results[0] is None else torch.stack(results)


def _wrapped(
    add: Callable[[Tensor, int, int], Tensor], found: Sequence[Tensor | None], level: int
) -> tuple[Tensor | None, ...]:
    """The results as tensors that stand for many."""
    return tuple(None if values is None else add(values, 0, level) for values in found)
