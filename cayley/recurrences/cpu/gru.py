"""The gated recurrence and its gradient in C; see :mod:`cayley.recurrences.gru`."""

import torch
from torch import Tensor

from cayley.recurrences.cpu.native import Steps, call

__all__ = ["gru", "gru_backward"]


def gru(
    x: Tensor,
    h0: Tensor,
    W: Tensor,
    b: Tensor | None,
    batch_sizes: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """All h, and all [r, u, c] in the layout of x."""
    B, H = h0.shape
    x, h0, W = x.contiguous(), h0.contiguous(), W.contiguous()
    b = None if b is None else b.contiguous()
    h, saved = x.new_empty(*x.shape[:-1], H), torch.empty_like(x)
    steps = Steps.of(x, B, batch_sizes, reverse)
    call("cayley_gru", steps, H, x, h0, W, b, h, saved, dtype=x.dtype)
    return h, saved


def gru_backward(
    grad_h: Tensor,
    grad_saved: Tensor | None,
    h: Tensor,
    saved: Tensor,
    h0: Tensor,
    W: Tensor,
    b: Tensor | None,
    batch_sizes: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients with respect to x, h0 and b, and all r ⊙ h, where h is the state before."""
    B, H = h0.shape
    grad_h, h, saved, h0, W = (v.contiguous() for v in (grad_h, h, saved, h0, W))
    b, grad_saved = (None if v is None else v.contiguous() for v in (b, grad_saved))
    delta, grad_h0, reset = (torch.empty_like(v) for v in (saved, h0, h))
    grad_b = h0.new_empty(0) if b is None else torch.empty_like(b)
    steps = Steps.of(h, B, batch_sizes, reverse)
    call(
        "cayley_gru_back",
        *(steps, H, grad_h, grad_saved, h, saved, h0, W, b, delta, grad_h0, grad_b, reset),
        dtype=h.dtype,
    )
    return delta, grad_h0, grad_b, reset
