"""The recurrence by layers of rotations, in C; see :mod:`cayley.recurrences.rotated`."""

import ctypes
from collections.abc import Collection
from functools import cache

import torch
from torch import Tensor

from cayley.kernels.calls import ElmanGradients, ElmanStates, RotatedCall
from cayley.kernels.cpu import native
from cayley.kernels.cpu.elman import run_backward, run_forward
from cayley.kernels.cpu.native import contiguous, pointers
from cayley.kernels.rotations import find_pattern

__all__ = ["refusal", "rotated", "rotated_backward"]

_NONLINEARITY = "modrelu_stacked"


class _Rotations(ctypes.Structure):
    """``Rotations`` of arguments.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("theta", "phi", "omega")),
        *((name, ctypes.c_void_p) for name in ("offsets", "blocks", "strides")),
        ("layers", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("grad_theta", "grad_phi", "grad_omega")),
    )


def refusal(call: RotatedCall, gradients: ElmanGradients | None = None) -> str | None:
    """Why C cannot compute a call, or its gradient; None if it can."""
    angles = call.theta, call.phi, call.omega
    return native.refusal(call.x, call.h0, *angles, call.b, call.U, call.c, *(gradients or ()))


def rotated(call: RotatedCall) -> ElmanStates:
    """The states of a call."""
    theta, phi, omega = contiguous(call.theta, call.phi, call.omega)
    rotations = _Rotations(
        **pointers(theta=theta, phi=phi, omega=omega), **_layer_fields(len(omega), call.layers)
    )
    return run_forward(call, None, _NONLINEARITY, rotations=rotations)


def rotated_backward(
    gradients: ElmanGradients, states: ElmanStates, call: RotatedCall, needed: Collection[str]
) -> dict[str, Tensor | None]:
    """Gradients of a call; of x, U and c those that are needed."""
    theta, phi, omega = angles = contiguous(call.theta, call.phi, call.omega)
    grad_theta, grad_phi, grad_omega = map(torch.empty_like, angles)
    rotations = _Rotations(
        **pointers(theta=theta, phi=phi, omega=omega),
        **pointers(grad_theta=grad_theta, grad_phi=grad_phi, grad_omega=grad_omega),
        **_layer_fields(len(omega), call.layers),
    )
    found = run_backward(gradients, states, call, None, _NONLINEARITY, needed, rotations=rotations)
    return {**found, "theta": grad_theta, "phi": grad_phi, "omega": grad_omega}


@cache
def _tables(n: int, layers: int) -> tuple[ctypes.Array[ctypes.c_int64], ...]:
    """Offsets, blocks and strides of all layers. They are kept, since C is given addresses."""
    pattern = find_pattern(n, layers)
    return tuple((ctypes.c_int64 * len(pattern))(*row) for row in zip(*pattern, strict=True))


def _layer_fields(n: int, layers: int) -> dict[str, int]:
    """The fields of the layers; without layers, all addresses are NULL."""
    tables = _tables(n, layers)
    addresses = dict(
        zip(("offsets", "blocks", "strides"), map(ctypes.addressof, tables), strict=False)
    )
    return {**addresses, "layers": len(tables[0]) if tables else 0}
