"""The gate before every kernel: what is behind a pointer must be what a tensor says it is."""

from typing import overload

from torch import Tensor

from cayley.tracing import is_wrapper

__all__ = ["memory_refusal", "readable", "resolved"]


def memory_refusal(*tensors: Tensor | None) -> str | None:
    """Why no kernel can read some tensors; None if all of them lie in memory of their own."""
    for tensor in tensors:
        if tensor is not None and is_wrapper(tensor):
            return f"kernels read memory, and a {type(tensor).__name__} has none of its own"
    return None


def resolved(tensor: Tensor) -> Tensor:
    """The tensor with the numbers that it stands for in memory.

    Torch negates and conjugates some tensors only when they are read, and some zeros have no
    memory at all; ``contiguous`` leaves all of them as they are.

    Example:
        >>> import torch
        >>> x = torch.tensor([1.0 + 2.0j]).conj().imag
        >>> x.is_neg(), resolved(x).is_neg(), resolved(x)
        (True, False, tensor([-2.]))
    """
    if reason := memory_refusal(tensor):
        raise NotImplementedError(f"{reason}: use a plain tensor")
    if tensor.is_neg() or tensor.is_conj():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor.clone() if tensor._is_zerotensor() else tensor


@overload
def readable(tensor: Tensor) -> Tensor: ...
@overload
def readable(tensor: None) -> None: ...
def readable(tensor: Tensor | None) -> Tensor | None:
    """The tensor as kernels read it, from front to back.

    Example:
        >>> import torch
        >>> readable(torch.ones(2, 3).mT).stride()
        (2, 1)
    """
    return None if tensor is None else resolved(tensor).contiguous()
