"""What torch is doing with our operations: computing them, tracing them or transforming them."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import TransformType
from torch.autograd import Function, forward_ad

from cayley.batched_gradients import one_by_one

__all__ = [
    "PLAIN",
    "autocast_enabled",
    "captured",
    "computes_now",
    "eager_apply",
    "has_tangent",
    "in_backward",
    "is_batched",
    "is_eager",
    "is_wrapper",
    "needs_loop",
    "no_autocast",
    "traced",
    "transformed",
    "transforms_active",
]

# None, and tensors that have memory of their own: to compare all types at once is faster than to
# look at each tensor
PLAIN = {Tensor, nn.Parameter, type(None)}


def autocast_enabled(device: torch.device) -> bool:
    """Whether autocast is on for a device; the meta device has none."""
    # first, since this takes a tenth of the time
    if not torch._C._is_any_autocast_enabled():
        return False
    kind = device.type
    return kind != "meta" and torch.is_autocast_enabled(kind)


def no_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Context in which autocast is off for a device.

    Example:
        >>> A = torch.eye(2)
        >>> with torch.autocast("cpu"), no_autocast(A.device):
        ...     (A @ A).dtype
        torch.float32
    """
    return torch.autocast(device.type, enabled=False) if autocast_enabled(device) else nullcontext()


def transforms_active() -> bool:
    """Whether a transform of :mod:`torch.func`, such as ``grad`` or ``vmap``, is running.

    Such a transform sees through torch's own operations, not through ours.

    Example:
        >>> torch.func.vmap(lambda x: x + transforms_active())(torch.zeros(2))
        tensor([1., 1.])
    """
    return torch._C._are_functorch_transforms_active()


def in_backward() -> bool:
    """Whether a backward pass is running, in which checkpoints compute calls again.

    Example:
        >>> x = torch.zeros(2, requires_grad=True)
        >>> _ = x.register_hook(lambda gradient: print(in_backward()))
        >>> x.sum().backward()
        True
        >>> in_backward()
        False
    """
    return torch._C._current_graph_task_id() != -1


def has_tangent(tensor: Tensor) -> bool:
    """Whether a tensor carries a tangent, the derivative of forward-mode differentiation.

    Example:
        >>> from torch.autograd import forward_ad
        >>> x = torch.zeros(2)
        >>> with forward_ad.dual_level():
        ...     has_tangent(x), has_tangent(forward_ad.make_dual(x, x))
        (False, True)
    """
    return _forward_mode() and forward_ad.unpack_dual(tensor).tangent is not None


def _forward_mode() -> bool:
    """Whether forward-mode differentiation is on at all: one check for many tensors."""
    # this cannot be traced by compilers, which reject forward mode themselves
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def needs_loop(*tensors: Tensor | None) -> bool:
    """Whether a derivative is taken that our operators do not have, but torch's own do.

    Our operators have gradients only. Transforms of :mod:`torch.func`, and forward-mode derivatives
    through any of the tensors, use the loop that defines the operator.

    Example:
        >>> from torch.autograd import forward_ad
        >>> x = torch.zeros(2)
        >>> with forward_ad.dual_level():
        ...     needs_loop(x, None), needs_loop(x, forward_ad.make_dual(x, x))
        (False, True)
        >>> torch.func.vmap(lambda x: x + needs_loop(x))(x)
        tensor([1., 1.])
    """
    if transforms_active():
        return True
    return _forward_mode() and any(t is not None and has_tangent(t) for t in tensors)


def transformed(*tensors: Tensor | None) -> bool:
    """Whether ``vmap`` or ``grad`` of :mod:`torch.func` is active, and no other tracer.

    Nodes of :mod:`cayley.kernels.transforms` have rules for these two.

    Example:
        >>> torch.func.vmap(lambda x: x + transformed(x))(torch.zeros(2))
        tensor([1., 1.])
        >>> torch.func.jvp(lambda x: x + transformed(x), (torch.zeros(2),), (torch.zeros(2),))[0]
        tensor([0., 0.])
    """
    # compilers trace through transforms themselves
    if torch.compiler.is_compiling() or not transforms_active():
        return False
    stack = torch._C._functorch.get_interpreter_stack() or ()
    kinds = (TransformType.Vmap, TransformType.Grad)
    return (
        all(level.key() in kinds for level in stack)
        and not _forward_mode()
        and not torch.jit.is_tracing()
        and torch._C._len_torch_dispatch_stack() == 0
        and not any(t is not None and (t.is_meta or is_wrapper(t)) for t in tensors)
    )


def is_batched(tensor: Tensor) -> bool:
    """Whether ``vmap`` of :mod:`torch.func` has a different tensor here for every network.

    Example:
        >>> shared = torch.zeros(2)
        >>> torch.func.vmap(lambda x: x + is_batched(x) - is_batched(shared))(torch.zeros(2))
        tensor([1., 1.])
    """
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        if torch._C._functorch.is_batchedtensor(tensor):
            return True
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return False


def is_wrapper(tensor: Tensor) -> bool:
    """Whether a tensor is of a subclass that handles operations itself, such as ``DTensor``.

    Such a tensor may have no memory of its own.

    Example:
        >>> from torch._subclasses import FakeTensorMode
        >>> with FakeTensorMode():
        ...     fake = torch.zeros(1)
        >>> is_wrapper(torch.zeros(1)), is_wrapper(fake)
        (False, True)
    """
    # comparing the type takes a tenth of the time
    return type(tensor) not in (Tensor, nn.Parameter) and _has_dispatch(tensor)


def _has_dispatch(tensor: Tensor) -> bool:
    # this cannot be traced by compilers, which handle such tensors themselves
    if torch.compiler.is_compiling():
        return False
    return torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python)


def is_eager(*tensors: Tensor | None) -> bool:
    """Whether operations on these tensors are just computed, and every tensor is a plain one.

    That is what most calls are, so this is the one check that has to be fast: if it holds, nothing
    is :func:`traced` or :func:`transformed`, unless on the meta device, and nothing
    :func:`needs_loop`.

    Example:
        >>> x = torch.zeros(2)
        >>> is_eager(x, None), torch.func.vmap(lambda x: x + is_eager(x))(x)
        (True, tensor([0., 0.]))
    """
    return not (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
        or forward_ad._current_level >= 0
    ) and PLAIN.issuperset(map(type, tensors))


def eager_apply(function: type[Function]) -> Callable[..., Any]:
    """The ``apply`` of an autograd function, for calls outside of :mod:`torch.func`'s transforms.

    ``function.apply`` looks for their wrapped tensors in each of its arguments, in every call.
    Many gradients at a time, from a transform around ``torch.autograd.grad``, are taken
    :func:`~cayley.batched_gradients.one_by_one`.

    Example:
        >>> class Double(Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         return 2 * x
        >>> eager_apply(Double)(torch.ones(2))
        tensor([2., 2.])
    """
    backward = staticmethod(one_by_one(function.backward))
    node = type(function)(function.__name__, (function,), {"backward": backward})
    # pyrefly: ignore[missing-attribute]
    return super(Function, node).apply


def traced(*tensors: Tensor | None) -> bool:
    """Whether operations on any of these tensors are traced or transformed, not just computed.

    They are under ``torch.compile`` and ``torch.export``, under ``torch.jit.trace``, on the meta
    device, under :mod:`torch.func`, inside dispatch modes such as that of fake tensors, and if any
    of the tensors is of a subclass that handles operations itself.

    Example:
        >>> traced(torch.zeros(1)), traced(torch.zeros(1, device="meta"))
        (False, True)
    """
    return (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
        or any(t is not None and (t.is_meta or is_wrapper(t)) for t in tensors)
    )


def captured(tensor: Tensor) -> bool:
    """Whether a CUDA graph is being captured that operations on a tensor become part of.

    Example:
        >>> captured(torch.zeros(1))
        False
    """
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def computes_now(tensor: Tensor) -> bool:
    """Whether operations on a tensor compute numbers now, rather than being recorded for later.

    They do not if they are :func:`traced`, nor while a CUDA graph is captured.

    Example:
        >>> computes_now(torch.zeros(1)), computes_now(torch.zeros(1, device="meta"))
        (True, False)
    """
    return not traced(tensor) and not captured(tensor)
