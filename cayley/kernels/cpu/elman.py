"""The Elman recurrence and its gradient in C; see :mod:`cayley.recurrences.elman`."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from cayley.kernels.cpu.native import Input, Steps, call, contiguous, pointers

__all__ = ["elman", "elman_backward"]

# the order of the enumeration in native.c
_ACTIVATIONS = ("modrelu", "relu", "leaky_relu", "tanh", "identity", "modrelu_stacked")


class _Elman(ctypes.Structure):
    """``Elman`` of arguments.h."""

    _fields_ = (
        ("input", Input),
        *((name, ctypes.c_void_p) for name in ("h0", "W", "b", "h", "z", "grad_h", "grad_z")),
        *((name, ctypes.c_void_p) for name in ("grad_h0", "grad_W", "grad_b")),
        *((name, ctypes.c_int64) for name in ("H", "activation")),
    )


def elman(
    x: Tensor,
    h0: Tensor,
    W: Tensor,
    b: Tensor | None,
    U: Tensor | None,
    c: Tensor | None,
    batch_sizes: Tensor | None,
    reverse: bool,
    nonlinearity: str,
) -> tuple[Tensor, Tensor]:
    """All h, and all z where the activation's derivative needs them (else an empty tensor)."""
    x, h0, W, b, U, c = contiguous(x, h0, W, b, U, c)
    B, H = h0.shape
    shape = (*x.shape[:-1], H)
    h = x.new_empty(shape)
    z = x.new_empty(shape if nonlinearity == "modrelu_stacked" else 0)
    all = _Elman(
        Input(**pointers(x=x, U=U, c=c), I=x.shape[-1]),
        **pointers(h0=h0, W=W, b=b, h=h, z=z),
        **{"H": H, "activation": _ACTIVATIONS.index(nonlinearity)},
    )
    call("cayley_elman", Steps.of(x, B, batch_sizes, reverse), all, dtype=x.dtype)
    return h, z


def elman_backward(
    grad_h: Tensor,
    grad_z: Tensor | None,
    h: Tensor,
    z: Tensor,
    x: Tensor,
    h0: Tensor,
    W: Tensor,
    b: Tensor | None,
    U: Tensor | None,
    batch_sizes: Tensor | None,
    reverse: bool,
    nonlinearity: str,
    wanted: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients with respect to x, h0, W, b, U and c; of x, W, U and c those that are wanted."""
    grad_h, grad_z, h, z, x, h0, W, b, U = contiguous(grad_h, grad_z, h, z, x, h0, W, b, U)
    B, H = h0.shape
    of_x, of_W, of_U, of_c = wanted
    grad_x = torch.empty_like(h if U is None else x) if of_x else h.new_empty(0)
    grad_h0, grad_b = torch.empty_like(h0), h.new_empty(0 if b is None else b.shape)
    # transposed, as C adds them up
    grad_W = h.new_empty((H, H) if of_W else (0, 0))
    grad_U = h.new_empty(U.shape[::-1] if of_U else (0, 0))
    grad_c = h.new_empty(H if of_c else 0)
    all = _Elman(
        Input(**pointers(x=x, U=U, grad_x=grad_x, grad_U=grad_U, grad_c=grad_c), I=x.shape[-1]),
        **pointers(h0=h0, W=W, b=b, h=h, z=z, grad_h=grad_h, grad_z=grad_z),
        **pointers(grad_h0=grad_h0, grad_W=grad_W, grad_b=grad_b),
        **{"H": H, "activation": _ACTIVATIONS.index(nonlinearity)},
    )
    call("cayley_elman_back", Steps.of(h, B, batch_sizes, reverse), all, dtype=h.dtype)
    return grad_x, grad_h0, grad_W.mT, grad_b, grad_U.mT, grad_c
