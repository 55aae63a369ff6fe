"""Checks before every kernel: the memory behind a pointer must be what the tensor says."""

from typing import overload

from torch import Tensor

from cayley.tracing import PLAIN, is_wrapper

__all__ = ["memory_refusal", "readable", "readable_gradient"]


def memory_refusal(*tensors: Tensor | None) -> str | None:
    """Why no kernel can read these tensors; None if all of them have memory of their own."""
    if PLAIN.issuperset(map(type, tensors)):
        return None
    for tensor in tensors:
        if tensor is not None and is_wrapper(tensor):
            return f"kernels read memory, and a {type(tensor).__name__} has none of its own"
    return None


@overload
def readable(tensor: Tensor) -> Tensor: ...
@overload
def readable(tensor: None) -> None: ...
def readable(tensor: Tensor | None) -> Tensor | None:
    """A real tensor as kernels read it: contiguous, if :func:`memory_refusal` is None.

    Torch negates some tensors only when they are read, and some zero tensors have no memory at all;
    ``contiguous`` alone does not change either.

    Example:
        >>> import torch
        >>> x = torch.tensor([1.0 + 2.0j]).conj().imag
        >>> x.is_neg(), readable(x).is_neg(), readable(x)
        (True, False, tensor([-2.]))
    """
    if tensor is None:
        return None
    if tensor.is_neg() or tensor._is_zerotensor():
        # a copy of such zeros has memory
        tensor = tensor.resolve_neg().clone()
    return tensor.contiguous()


def readable_gradient(G: Tensor) -> Tensor:
    """The same for a gradient, which was not checked before, and may have any strides.

    Raises:
        NotImplementedError: The gradient has no memory of its own.
    """
    if reason := memory_refusal(G):
        raise NotImplementedError(f"{reason}: use a plain tensor")
    return readable(G) if G.is_neg() or G._is_zerotensor() else G
