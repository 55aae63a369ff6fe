"""The Elman recurrence and its gradient in C; see :mod:`cayley.recurrences.elman`."""

import ctypes
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from cayley.activations import ACTIVATIONS as KNOWN
from cayley.kernels.calls import ElmanCall, ElmanGradients, ElmanStates, FactoredCall
from cayley.kernels.cpu import native
from cayley.kernels.cpu.native import Input, Steps, contiguous, pointers, run_steps

__all__ = [
    "ACTIVATIONS",
    "elman",
    "elman_backward",
    "refusal",
    "run_backward",
    "run_forward",
]

# those in C, in the order of the enumeration in native.c
ACTIVATIONS = ("modrelu", "relu", "leaky_relu", "tanh", "identity", "modrelu_stacked")


class _Elman(ctypes.Structure):
    """``Elman`` of arguments.h."""

    _fields_ = (
        ("input", Input),
        *((name, ctypes.c_void_p) for name in ("h0", "W", "b", "h", "z", "grad_h", "grad_z")),
        *((name, ctypes.c_void_p) for name in ("grad_h0", "grad_W", "grad_b")),
        *((name, ctypes.c_int64) for name in ("H", "activation")),
        ("rotations", ctypes.c_void_p),
        ("composition", ctypes.c_void_p),
    )


def refusal(call: ElmanCall, gradients: ElmanGradients | None = None) -> str | None:
    """Why C cannot compute a call, or its gradient; None if it can."""
    if call.nonlinearity not in ACTIVATIONS:
        return f"the CPU kernel has no {call.nonlinearity}"
    return native.refusal(call.x, call.h0, call.W, call.b, call.U, call.c, *(gradients or ()))


def elman(call: ElmanCall) -> ElmanStates:
    """The states of a call."""
    return run_forward(call, call.W, call.nonlinearity)


def elman_backward(
    gradients: ElmanGradients, states: ElmanStates, call: ElmanCall, needed: Collection[str]
) -> dict[str, Tensor | None]:
    """Gradients of a call; of x, W, U and c those that are needed."""
    return run_backward(gradients, states, call, call.W, call.nonlinearity, needed)


def run_forward(
    call: ElmanCall | FactoredCall,
    W: Tensor | None,
    nonlinearity: str,
    **factors: ctypes.Structure,
) -> ElmanStates:
    """The states of a call with a matrix W, or with its factors, by their field, instead."""
    x, h0, W, b, U, c = contiguous(call.x, call.h0, W, call.b, call.U, call.c)
    B, H = h0.shape
    shape = (*x.shape[:-1], H)
    h = x.new_empty(shape)
    z = x.new_empty(shape if KNOWN[nonlinearity].needs_z else 0)
    arguments = _Elman(
        Input(**pointers(x=x, U=U, c=c), I=x.shape[-1]),
        **pointers(h0=h0, W=W, b=b, h=h, z=z),
        **{"H": H, "activation": ACTIVATIONS.index(nonlinearity)},
        **_addresses(factors),
    )
    steps = Steps.of(x, B, call.batch_sizes, call.reverse)
    run_steps("cayley_elman", steps, arguments, dtype=x.dtype)
    return ElmanStates(h, z)


def run_backward(
    gradients: ElmanGradients,
    states: ElmanStates,
    call: ElmanCall | FactoredCall,
    W: Tensor | None,
    nonlinearity: str,
    needed: Collection[str],
    **factors: ctypes.Structure,
) -> dict[str, Tensor | None]:
    """Gradients of a call as in :func:`run_forward`; those of factors are where these say."""
    grad_h, grad_z, h, z = contiguous(*gradients, *states)
    x, h0, W, b, U = contiguous(call.x, call.h0, W, call.b, call.U)
    B, H = h0.shape
    grad_x = torch.empty_like(x) if "x" in needed else None
    grad_h0, grad_b = torch.empty_like(h0), None if b is None else torch.empty_like(b)
    # transposed, as C adds them up
    grad_W = h.new_empty(H, H) if "W" in needed else None
    grad_U = h.new_empty(U.shape[::-1]) if "U" in needed else None
    grad_c = h.new_empty(H) if "c" in needed else None
    arguments = _Elman(
        Input(**pointers(x=x, U=U, grad_x=grad_x, grad_U=grad_U, grad_c=grad_c), I=x.shape[-1]),
        **pointers(h0=h0, W=W, b=b, h=h, z=z, grad_h=grad_h, grad_z=grad_z),
        **pointers(grad_h0=grad_h0, grad_W=grad_W, grad_b=grad_b),
        **{"H": H, "activation": ACTIVATIONS.index(nonlinearity)},
        **_addresses(factors),
    )
    steps = Steps.of(h, B, call.batch_sizes, call.reverse)
    run_steps("cayley_elman_back", steps, arguments, dtype=h.dtype)
    return {
        "x": grad_x,
        "h0": grad_h0,
        "W": None if grad_W is None else grad_W.mT,
        "b": grad_b,
        "U": None if grad_U is None else grad_U.mT,
        "c": grad_c,
    }


def _addresses(factors: Mapping[str, ctypes.Structure]) -> dict[str, int]:
    return {name: ctypes.addressof(structure) for name, structure in factors.items()}
