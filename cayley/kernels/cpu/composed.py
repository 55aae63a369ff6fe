"""The recurrence whose matrix is a composition, in C; see :mod:`cayley.recurrences.composed`."""

import ctypes
from collections.abc import Collection
from functools import cache

import torch
from torch import Tensor

from cayley.kernels.calls import ComposedCall, ElmanGradients, ElmanStates
from cayley.kernels.cpu import native
from cayley.kernels.cpu.elman import run_backward, run_forward
from cayley.kernels.cpu.native import contiguous, pointers
from cayley.kernels.memory import memory_refusal
from cayley.kernels.primes import LARGEST_PRIME, prime_factors

__all__ = ["composed", "composed_backward", "refusal", "size_refusal"]

_NONLINEARITY = "modrelu_stacked"


class _Composition(ctypes.Structure):
    """``Composition`` of arguments.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("w", "v", "permutation", "radices")),
        ("stages", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("grad_w", "grad_v")),
    )


def refusal(call: ComposedCall, gradients: ElmanGradients | None = None) -> str | None:
    """Why C cannot compute a call, or its gradient; None if it can."""
    if reason := size_refusal(call.w.shape[-1]):
        return reason
    given = call.w, call.v, call.b, call.U, call.c, *(gradients or ())
    return native.refusal(call.x, call.h0, *given) or memory_refusal(call.permutation)


def size_refusal(n: int) -> str | None:
    """Why C cannot compute n units, or takes longer than torch; None if it should."""
    if n == 0:
        return "the C code needs a unit at least"
    if max(prime_factors(n), default=1) > LARGEST_PRIME:
        return f"torch transforms {n} numbers faster, as a prime factor is above {LARGEST_PRIME}"
    return None


def composed(call: ComposedCall) -> ElmanStates:
    """The states of a call."""
    w, v, permutation = contiguous(call.w, call.v, _checked(call.permutation))
    composition = _Composition(
        **pointers(w=w, v=v, permutation=permutation), **_radix_fields(w.shape[1])
    )
    return run_forward(call, None, _NONLINEARITY, composition=composition)


def composed_backward(
    gradients: ElmanGradients, states: ElmanStates, call: ComposedCall, needed: Collection[str]
) -> dict[str, Tensor | None]:
    """Gradients of a call; of x, U and c those that are needed."""
    w, v, permutation = contiguous(call.w, call.v, _checked(call.permutation))
    grad_w, grad_v = torch.empty_like(w), torch.empty_like(v)
    composition = _Composition(
        **pointers(w=w, v=v, permutation=permutation, grad_w=grad_w, grad_v=grad_v),
        **_radix_fields(w.shape[1]),
    )
    found = run_backward(
        gradients, states, call, None, _NONLINEARITY, needed, composition=composition
    )
    return {**found, "w": grad_w, "v": grad_v}


def _checked(permutation: Tensor) -> Tensor:
    """A permutation as C reads it; raise if it is none, since C would read other memory."""
    permutation = permutation.long()
    if not permutation.sort().values.equal(torch.arange(len(permutation))):
        raise ValueError(f"expected a permutation of 0, …, n − 1, got {permutation}")
    return permutation


@cache
def radices(n: int) -> tuple[int, ...]:
    """The factors of n for the stages of a Fourier transform: odd primes, 4 and 2.

    Example:
        >>> radices(2170), radices(512), radices(1)
        ((31, 7, 5, 2), (4, 4, 4, 4, 2), (1,))
    """
    primes = prime_factors(n)
    twos = primes.count(2)
    odd = tuple(p for p in reversed(primes) if p > 2)
    return (*odd, *[4] * (twos // 2), *[2] * (twos % 2)) or (1,)


@cache
def _table(n: int) -> ctypes.Array[ctypes.c_int64]:
    """The radices, which are kept, since C is given their address."""
    return (ctypes.c_int64 * len(radices(n)))(*radices(n))


def _radix_fields(n: int) -> dict[str, int]:
    table = _table(n)
    return {"radices": ctypes.addressof(table), "stages": len(table)}
