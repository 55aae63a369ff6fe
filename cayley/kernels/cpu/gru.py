"""The gated recurrence and its gradient in C; see :mod:`cayley.recurrences.gru`."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from cayley.kernels.cpu.native import Input, Steps, call, contiguous, pointers

__all__ = ["gru", "gru_backward"]


class _Gru(ctypes.Structure):
    """``Gru`` of arguments.h."""

    _fields_ = (
        ("input", Input),
        *((name, ctypes.c_void_p) for name in ("h0", "W", "b", "h", "gates")),
        *((name, ctypes.c_void_p) for name in ("grad_h", "grad_gates")),
        *((name, ctypes.c_void_p) for name in ("grad_h0", "grad_W", "grad_b")),
        ("H", ctypes.c_int64),
    )


def gru(
    x: Tensor,
    h0: Tensor,
    W: Tensor,
    b: Tensor | None,
    U: Tensor | None,
    c: Tensor | None,
    batch_sizes: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """All h, and all [r, u, c]."""
    x, h0, W, b, U, c = contiguous(x, h0, W, b, U, c)
    B, H = h0.shape
    h, gates = (x.new_empty(*x.shape[:-1], F) for F in (H, 3 * H))
    all = _Gru(
        Input(**pointers(x=x, U=U, c=c), I=x.shape[-1]),
        **pointers(h0=h0, W=W, b=b, h=h, gates=gates),
        H=H,
    )
    call("cayley_gru", Steps.of(x, B, batch_sizes, reverse), all, dtype=x.dtype)
    return h, gates


def gru_backward(
    grad_h: Tensor,
    grad_gates: Tensor | None,
    h: Tensor,
    gates: Tensor,
    x: Tensor,
    h0: Tensor,
    W: Tensor,
    b: Tensor | None,
    U: Tensor | None,
    batch_sizes: Tensor | None,
    reverse: bool,
    wanted: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients with respect to x, h0, W, b, U and c; of x, W, U and c those that are wanted."""
    grad_h, grad_gates, h, gates, x, h0, W, b, U = contiguous(
        *(grad_h, grad_gates, h, gates, x, h0, W, b, U)
    )
    B, H = h0.shape
    of_x, of_W, of_U, of_c = wanted
    grad_x = torch.empty_like(gates if U is None else x) if of_x else h.new_empty(0)
    grad_h0, grad_b = torch.empty_like(h0), h.new_empty(0 if b is None else b.shape)
    # transposed, as C adds them up
    grad_W = h.new_empty((H, 3 * H) if of_W else (0, 0))
    grad_U = h.new_empty(U.shape[::-1] if of_U else (0, 0))
    grad_c = h.new_empty(3 * H if of_c else 0)
    all = _Gru(
        Input(**pointers(x=x, U=U, grad_x=grad_x, grad_U=grad_U, grad_c=grad_c), I=x.shape[-1]),
        **pointers(h0=h0, W=W, b=b, h=h, gates=gates, grad_h=grad_h, grad_gates=grad_gates),
        **pointers(grad_h0=grad_h0, grad_W=grad_W, grad_b=grad_b),
        H=H,
    )
    call("cayley_gru_back", Steps.of(h, B, batch_sizes, reverse), all, dtype=h.dtype)
    return grad_x, grad_h0, grad_W.mT, grad_b, grad_U.mT, grad_c
