"""The kernels of an operator without the operator, where no tracer has to see it."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from cayley.tracing import computes_now

__all__ = ["at_once", "differentiable_at_once"]

Kernels = Mapping[str, Callable[..., Any]]


def at_once(operator: Callable[..., Any], kernels: Kernels, like: Tensor, *arguments: Any) -> Any:
    """What an operator gives, by the kernel for a tensor's device if numbers are computed now.

    From an operator to a kernel that is written in Python, torch asks the schema for every
    argument, and for all of them each time: with thirty arguments that takes longer than a hundred
    steps of a recurrence on a GPU.

    Arguments:
        operator: The operator, for tracers and other devices.
        kernels: What computes it, for each kind of device.
        like: A tensor of the call.
        *arguments: Those of the operator.
    """
    kernel = kernels.get(like.device.type)
    run = operator if kernel is None or not computes_now(like) else kernel
    return run(*arguments)


def differentiable_at_once(
    operator: Callable[..., Any],
    kernels: Kernels,
    save: Callable[..., None],
    differentiate: Callable[..., Any],
    *arguments: Any,
) -> Any:
    """The same for an operator with a gradient; the first of the arguments is a tensor.

    Arguments:
        operator: The operator, for tracers and other devices.
        kernels: What computes it, for each kind of device.
        save: Keeps what the gradient needs, as for ``register_autograd``.
        differentiate: Gives the gradients, likewise.
        *arguments: Those of the operator.
    """
    kernel = kernels.get(arguments[0].device.type)
    if kernel is None or not computes_now(arguments[0]):
        return operator(*arguments)
    return _Differentiable.apply(*arguments, kernel, save, differentiate)


class _Differentiable(torch.autograd.Function):
    # what is no argument of the operator comes last, so that the others keep their numbers
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        *inputs, kernel, save, ctx.differentiate = arguments
        output = kernel(*inputs)
        save(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return *ctx.differentiate(ctx, *gradients), None, None, None
