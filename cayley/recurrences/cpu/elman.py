"""The Elman recurrence and its gradient in C; see :mod:`cayley.recurrences.elman`."""

import torch
from torch import Tensor

from cayley.recurrences.cpu.native import Steps, call

__all__ = ["elman", "elman_backward"]

# the order of the enumeration in native.c
_ACTIVATIONS = ("modrelu", "relu", "leaky_relu", "tanh", "identity", "modrelu_stacked")


def elman(
    x: Tensor,
    h0: Tensor,
    W: Tensor,
    b: Tensor | None,
    batch_sizes: Tensor | None,
    reverse: bool,
    nonlinearity: str,
) -> tuple[Tensor, Tensor]:
    """All h, and all z where the activation's derivative needs them (else an empty tensor)."""
    x, h0, W = x.contiguous(), h0.contiguous(), W.contiguous()
    b = None if b is None else b.contiguous()
    h = torch.empty_like(x)
    z = torch.empty_like(x) if nonlinearity == "modrelu_stacked" else x.new_empty(0)
    steps = Steps.of(x, len(h0), batch_sizes, reverse)
    kind = _ACTIVATIONS.index(nonlinearity)
    call("cayley_elman", steps, h0.shape[1], kind, x, h0, W, b, h, z, dtype=x.dtype)
    return h, z


def elman_backward(
    grad_h: Tensor,
    grad_z: Tensor | None,
    h: Tensor,
    z: Tensor,
    h0: Tensor,
    W: Tensor,
    b: Tensor | None,
    batch_sizes: Tensor | None,
    reverse: bool,
    nonlinearity: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients with respect to x, h0 and b."""
    grad_h, h, z, W = (tensor.contiguous() for tensor in (grad_h, h, z, W))
    b, grad_z = (None if tensor is None else tensor.contiguous() for tensor in (b, grad_z))
    delta = torch.empty_like(h)
    grad_h0 = torch.empty(h0.shape, dtype=h0.dtype)
    grad_b = h.new_empty(0) if b is None else torch.empty_like(b)
    steps = Steps.of(h, len(h0), batch_sizes, reverse)
    kind = _ACTIVATIONS.index(nonlinearity)
    call(
        "cayley_elman_back",
        *(steps, h0.shape[1], kind, grad_h, grad_z, h, z, W, b, delta, grad_h0, grad_b),
        dtype=h.dtype,
    )
    return delta, grad_h0, grad_b
