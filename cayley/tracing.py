"""What torch is doing with our operations: computing them, or something else."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch._C._functorch import TransformType
from torch.autograd import forward_ad

__all__ = [
    "autocast_enabled",
    "computes_now",
    "has_tangent",
    "is_batched",
    "is_wrapper",
    "needs_loop",
    "no_autocast",
    "traced",
    "transformed",
    "transforms_active",
]


def autocast_enabled(device: torch.device) -> bool:
    """Whether autocast is on for a device; the meta device has none."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


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


def has_tangent(tensor: Tensor) -> bool:
    """Whether a derivative in forward mode goes through a tensor.

    Example:
        >>> from torch.autograd import forward_ad
        >>> x = torch.zeros(2)
        >>> with forward_ad.dual_level():
        ...     has_tangent(x), has_tangent(forward_ad.make_dual(x, x))
        (False, True)
    """
    return _forward_mode() and forward_ad.unpack_dual(tensor).tangent is not None


def _forward_mode() -> bool:
    """Whether there are derivatives in forward mode at all: one question for many tensors."""
    # compilers cannot ask, and refuse such derivatives themselves
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def needs_loop(*tensors: Tensor | None) -> bool:
    """Whether a derivative is taken that our operators do not have, but torch's own have.

    They have a gradient only. Transforms of :mod:`torch.func`, and derivatives in forward mode
    through any of the tensors, go through the loop that an operator stands for.

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
    """Whether ``vmap`` and ``grad`` of :mod:`torch.func` see operations, and nobody else.

    Nodes of :mod:`cayley.kernels.transforms` have rules for these two.

    Example:
        >>> torch.func.vmap(lambda x: x + transformed(x))(torch.zeros(2))
        tensor([1., 1.])
        >>> torch.func.jvp(lambda x: x + transformed(x), (torch.zeros(2),), (torch.zeros(2),))[0]
        tensor([0., 0.])
    """
    # a compiler sees through transforms itself
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
    """Whether ``vmap`` of :mod:`torch.func` gives every network another tensor here.

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
    """Whether a class of tensors of somebody else's, such as ``DTensor``, sees the operations.

    Such a tensor may have no memory of its own.

    Example:
        >>> from torch._subclasses import FakeTensorMode
        >>> with FakeTensorMode():
        ...     fake = torch.zeros(1)
        >>> is_wrapper(torch.zeros(1)), is_wrapper(fake)
        (False, True)
    """
    # to ask for the type takes a tenth of the time
    return type(tensor) not in (Tensor, nn.Parameter) and _has_dispatch(tensor)


def _has_dispatch(tensor: Tensor) -> bool:
    # compilers cannot ask, and see through such tensors themselves
    if torch.compiler.is_compiling():
        return False
    return torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python)


def traced(*tensors: Tensor | None) -> bool:
    """Whether somebody else sees operations on a tensor, and may do something else with them.

    It is so under ``torch.compile`` and ``torch.export``, under ``torch.jit.trace``, on the meta
    device, under :mod:`torch.func`, inside dispatch modes such as that of fake tensors, and where
    any of several tensors is of a class that has operations of its own.

    Example:
        >>> traced(torch.zeros(1)), traced(torch.zeros(1, device="meta"))
        (False, True)
    """
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
        or any(t is not None and (t.is_meta or is_wrapper(t)) for t in tensors)
    )


def computes_now(tensor: Tensor) -> bool:
    """Whether operations on a tensor compute numbers now, rather than be recorded for later.

    They do not where they are :func:`traced`, and in the capture of a CUDA graph.

    Example:
        >>> computes_now(torch.zeros(1)), computes_now(torch.zeros(1, device="meta"))
        (True, False)
    """
    return not traced(tensor) and not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())
