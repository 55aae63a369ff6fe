"""The gated recurrence and its gradient in C; see :mod:`cayley.recurrences.gru`."""

import ctypes
from collections.abc import Collection

import torch
from torch import Tensor

from cayley.kernels.calls import GruCall, GruGradients, GruStates
from cayley.kernels.cpu import native
from cayley.kernels.cpu.native import Input, Steps, contiguous, pointers, run_steps

__all__ = ["gru", "gru_backward", "refusal"]


class _Gru(ctypes.Structure):
    """``Gru`` of arguments.h."""

    _fields_ = (
        ("input", Input),
        *((name, ctypes.c_void_p) for name in ("h0", "W", "b", "h", "gates")),
        *((name, ctypes.c_void_p) for name in ("grad_h", "grad_gates")),
        *((name, ctypes.c_void_p) for name in ("grad_h0", "grad_W", "grad_b")),
        ("H", ctypes.c_int64),
    )


def refusal(call: GruCall, gradients: GruGradients | None = None) -> str | None:
    """Why C cannot compute a call, or its gradient; None if it can."""
    return native.refusal(call.x, call.h0, call.W, call.b, call.U, call.c, *(gradients or ()))


def gru(call: GruCall) -> GruStates:
    """The states of a call."""
    x, h0, W, b, U, c = contiguous(call.x, call.h0, call.W, call.b, call.U, call.c)
    B, H = h0.shape
    h, gates = (x.new_empty(*x.shape[:-1], F) for F in (H, 3 * H))
    arguments = _Gru(
        Input(**pointers(x=x, U=U, c=c), I=x.shape[-1]),
        **pointers(h0=h0, W=W, b=b, h=h, gates=gates),
        H=H,
    )
    steps = Steps.of(x, B, call.batch_sizes, call.reverse)
    run_steps("cayley_gru", steps, arguments, dtype=x.dtype)
    return GruStates(h, gates)


def gru_backward(
    gradients: GruGradients, states: GruStates, call: GruCall, needed: Collection[str]
) -> dict[str, Tensor | None]:
    """Gradients of a call; of x, W, U and c those that are needed."""
    grad_h, grad_gates, h, gates = contiguous(*gradients, *states)
    x, h0, W, b, U = contiguous(call.x, call.h0, call.W, call.b, call.U)
    B, H = h0.shape
    grad_x = torch.empty_like(x) if "x" in needed else None
    grad_h0, grad_b = torch.empty_like(h0), None if b is None else torch.empty_like(b)
    # transposed, as C adds them up
    grad_W = h.new_empty(H, 3 * H) if "W" in needed else None
    grad_U = h.new_empty(U.shape[::-1]) if "U" in needed else None
    grad_c = h.new_empty(3 * H) if "c" in needed else None
    arguments = _Gru(
        Input(**pointers(x=x, U=U, grad_x=grad_x, grad_U=grad_U, grad_c=grad_c), I=x.shape[-1]),
        **pointers(h0=h0, W=W, b=b, h=h, gates=gates, grad_h=grad_h, grad_gates=grad_gates),
        **pointers(grad_h0=grad_h0, grad_W=grad_W, grad_b=grad_b),
        H=H,
    )
    steps = Steps.of(h, B, call.batch_sizes, call.reverse)
    run_steps("cayley_gru_back", steps, arguments, dtype=h.dtype)
    return {
        "x": grad_x,
        "h0": grad_h0,
        "W": None if grad_W is None else grad_W.mT,
        "b": grad_b,
        "U": None if grad_U is None else grad_U.mT,
        "c": grad_c,
    }
