"""The LSTM recurrence and its gradient in C; see :mod:`cayley.recurrences.lstm`."""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cayley.kernels.cpu.native import Input, Steps, call, contiguous, pointers

__all__ = ["lstm", "lstm_backward"]

_POINTER = ctypes.c_void_p
_LONGEST = 2**31 - 1  # of windows that C can count; no sequence is as long


class _Site(ctypes.Structure):
    """``Site`` of arguments.h."""

    _fields_ = (
        *((name, _POINTER) for name in ("gamma", "beta", "reference", "past", "given")),
        *((name, _POINTER) for name in ("statistics", "grad_statistics")),
        *((name, _POINTER) for name in ("grad_gamma", "grad_beta", "grad_past")),
        ("given_rows", ctypes.c_int64),
    )


class _Lstm(ctypes.Structure):
    """``Lstm`` of arguments.h."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("H", "window", "over_batch")),
        ("eps", ctypes.c_double),
        ("input", Input),
        *((name, _POINTER) for name in ("h0", "c0", "W", "b", "weights")),
        ("sites", _Site * 3),
        *((name, _POINTER) for name in ("h", "c", "kept", "grad_h", "grad_c")),
        *((name, _POINTER) for name in ("grad_h0", "grad_c0", "grad_W", "grad_b")),
    )


def _sites(
    tensors: list[Tensor | None],
    statistics: list[Tensor],
    gradients: Sequence[Mapping[str, Tensor | None]],
) -> ctypes.Array:
    """The normalisations, from five tensors for each and what belongs to one direction."""
    sites = (_Site * 3)()
    for k in range(3):
        gamma, beta, reference, past, given = tensors[5 * k : 5 * k + 5]
        own = {"gamma": gamma, "beta": beta, "reference": reference, "past": past, "given": given}
        found = pointers(**own, statistics=statistics[k], **gradients[k])
        sites[k] = _Site(**found, given_rows=0 if given is None else given.shape[2])
    return sites


def lstm(*arguments: Any) -> tuple[Tensor, ...]:
    """All h and c, the gates or normalised products, and the statistics of every normalisation.

    Arguments are those of the operator in :mod:`cayley.recurrences.lstm`, up to ε.
    """
    *tensors, batch_sizes, window, over_batch, eps = arguments
    x, h0, c0, W, b, *sites, weights, U = contiguous(*tensors)
    B, H = h0.shape
    T = len(x) if batch_sizes is None else len(batch_sizes)
    h, c, kept = (x.new_empty(*x.shape[:-1], F) for F in (H, H, 4 * H))
    statistics = []
    for k in (0, 5, 10):
        gamma, given = sites[k], sites[k + 4]
        shape = (4, T, 1, len(gamma)) if over_batch and gamma is not None else (4, T, B, 1)
        statistics.append(x.new_zeros(0 if gamma is None or given is not None else shape))
    all = _Lstm(
        *(H, min(window, _LONGEST), over_batch, eps),
        input=Input(**pointers(x=x, U=U), I=x.shape[-1]),
        **pointers(h0=h0, c0=c0, W=W, b=b, weights=weights, h=h, c=c, kept=kept),
        sites=_sites(sites, statistics, [{}] * 3),
    )
    call("cayley_lstm", Steps.of(x, B, batch_sizes, False), all, dtype=x.dtype)
    return h, c, kept, *statistics


def lstm_backward(*arguments: Any) -> list[Tensor]:
    """Gradients; arguments and result are those of :func:`cayley.recurrences.lstm_gradient`."""
    *tensors, batch_sizes, window, over_batch, eps, (of_x, of_W, of_U) = arguments
    tensors = contiguous(*tensors)
    grad_h, grad_c, *grad_statistics = tensors[:5]
    h, c, kept, *statistics = tensors[5:11]
    x, h0, c0, W, b, *sites, weights, U = tensors[11:]
    B, H = h0.shape

    def like(tensor: Tensor | None) -> Tensor:
        return h.new_empty(0) if tensor is None else torch.empty_like(tensor)

    # a normalisation of either term makes two gradients of one, in the place of the first
    normalised = sites[0] is not None or sites[5] is not None
    grad_x = like(x if of_x or normalised else None)
    grad_h0, grad_c0, grad_b = like(h0), like(c0), like(b)
    # transposed, as C adds them up
    grad_W = h.new_empty((H, 4 * H) if of_W else (0, 0))
    grad_U = h.new_empty(U.shape[::-1] if of_U else (0, 0))
    found = [
        {
            "grad_gamma": like(sites[5 * k]),
            "grad_beta": like(sites[5 * k]),
            # past statistics that are not used have no gradient
            "grad_past": h.new_zeros(0 if sites[5 * k + 3] is None else sites[5 * k + 3].shape),
        }
        for k in range(3)
    ]
    inward = [
        gradients | {"grad_statistics": external}
        for gradients, external in zip(found, grad_statistics, strict=True)
    ]
    all = _Lstm(
        *(H, min(window, _LONGEST), over_batch, eps),
        input=Input(**pointers(x=x, U=U, grad_x=grad_x, grad_U=grad_U), I=x.shape[-1]),
        **pointers(h0=h0, c0=c0, W=W, weights=weights),
        **pointers(h=h, c=c, kept=kept, grad_h=grad_h, grad_c=grad_c),
        **pointers(grad_h0=grad_h0, grad_c0=grad_c0, grad_W=grad_W, grad_b=grad_b),
        sites=_sites(sites, statistics, inward),
    )
    call("cayley_lstm_back", Steps.of(h, B, batch_sizes, False), all, dtype=h.dtype)
    result = [grad_x if of_x else like(None), grad_h0, grad_c0, grad_W.mT, grad_b]
    for gradients in found:
        result += gradients.values()
    return [*result, grad_U.mT]
