"""The kernels of an operator without the operator, where no tracer has to see it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cayley.tracing import traced

__all__ = ["at_once", "differentiable_at_once", "recorded_gradients", "separate"]

Kernels = Mapping[str, Callable[..., Any]]


def at_once(operator: Callable[..., Any], kernels: Kernels, like: Tensor, *arguments: Any) -> Any:
    """What an operator gives, by the kernel for a tensor's device if nobody traces it.

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
    run = operator if kernel is None or traced(like) else kernel
    return run(*arguments)


def separate(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Copies of those that are part of another tensor: the results of an operator must not be.

    Example:
        >>> with torch.inference_mode():
        ...     parts = separate(torch.arange(4.0).split(2))
        >>> [part.untyped_storage().nbytes() for part in parts]
        [8, 8]
    """
    # a storage tells of views that autograd has not seen
    return [v if 0 < v.nbytes == v.untyped_storage().nbytes() else v.clone() for v in tensors]


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
    if kernel is None or traced(arguments[0]):
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


def recorded_gradients(
    function: Callable[..., Sequence[Tensor]],
    inputs: Sequence[Tensor | None],
    needed: Sequence[bool],
    gradients: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Gradients that can be differentiated again: those of a function whose steps are recorded.

    Arguments:
        function: Gives the outputs from the inputs.
        inputs: Tensors, and None.
        needed: Whether the gradient of each is.
        gradients: Those of the outputs, None for 0.

    Example:
        >>> x = torch.tensor(3.0, requires_grad=True)
        >>> (slope,) = recorded_gradients(lambda x: (x * x,), [x], [True], [torch.ones(())])
        >>> torch.autograd.grad(slope, x)
        (tensor(2.),)
    """
    # an alias for each argument keeps apart those that are one tensor
    aliases: list[Any] = [None if v is None else v.view_as(v) for v in inputs]
    outputs = function(*aliases)
    wanted = [k for k, need in enumerate(needed) if need]
    used = [k for k, G in enumerate(gradients) if G is not None and outputs[k].requires_grad]
    results: list[Tensor | None] = [None] * len(inputs)
    if not used:
        return results
    found = torch.autograd.grad(
        [outputs[k] for k in used],
        [aliases[k] for k in wanted],
        [gradients[k] for k in used],
        create_graph=True,
        allow_unused=True,
    )
    for k, gradient in zip(wanted, found, strict=True):
        results[k] = gradient
    return results
