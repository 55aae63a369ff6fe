"""The LSTM recurrence and its gradient in C; see :mod:`cayley.recurrences.lstm`."""

import ctypes
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from cayley.kernels.calls import LstmCall, LstmGradients, LstmStates, Site
from cayley.kernels.cpu import native
from cayley.kernels.cpu.native import Input, Steps, contiguous, pointers, run_steps

__all__ = ["lstm", "lstm_backward", "refusal"]

_POINTER = ctypes.c_void_p
_LONGEST = 2**31 - 1  # the longest window that C can count; no sequence is that long


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


def refusal(call: LstmCall, gradients: LstmGradients | None = None) -> str | None:
    """Why C cannot compute a call, or its gradient; None if it can."""
    tensors = (call.x, call.h0, call.c0, call.W, call.b, call.weights, call.U)
    sites = (tensor for site in call.sites() if site is not None for tensor in site)
    return native.refusal(*tensors, *sites, *(gradients or ()))


def lstm(call: LstmCall) -> LstmStates:
    """The states, cells and statistics of a call."""
    x, h0, c0, W, b, weights, U = contiguous(
        *(call.x, call.h0, call.c0, call.W, call.b, call.weights, call.U)
    )
    B, H = h0.shape
    T = len(x) if call.batch_sizes is None else len(call.batch_sizes)
    h, c, kept = (x.new_empty(*x.shape[:-1], F) for F in (H, H, 4 * H))
    sites = _contiguous_sites(call)
    statistics = []
    for site in sites:
        if site is None or site.given is not None:
            statistics.append(x.new_empty(0))
        else:
            group = (1, len(site.gamma)) if call.over_batch else (B, 1)
            statistics.append(x.new_zeros(4, T, *group))
    arguments = _Lstm(
        *(H, min(call.window, _LONGEST), call.over_batch, call.eps),
        input=Input(**pointers(x=x, U=U), I=x.shape[-1]),
        **pointers(h0=h0, c0=c0, W=W, b=b, weights=weights, h=h, c=c, kept=kept),
        sites=_in_c(sites, [{"statistics": own} for own in statistics]),
    )
    steps = Steps.of(x, B, call.batch_sizes, False)
    run_steps("cayley_lstm", steps, arguments, dtype=x.dtype)
    return LstmStates(h, c, kept, *statistics)


def lstm_backward(
    gradients: LstmGradients, states: LstmStates, call: LstmCall, needed: Collection[str]
) -> dict[str, Tensor | None]:
    """Gradients of a call; of x, W and U those that are needed."""
    grad_h, grad_c, h, c, kept = contiguous(
        *(gradients.h, gradients.c, states.h, states.c, states.kept)
    )
    x, h0, c0, W, b, weights, U = contiguous(
        *(call.x, call.h0, call.c0, call.W, call.b, call.weights, call.U)
    )
    B, H = h0.shape
    # if either term is normalised, the two have separate gradients instead of a common one
    normalised = call.input is not None or call.recurrent is not None
    grad_x = torch.empty_like(x) if "x" in needed or normalised else None
    grad_h0, grad_c0 = torch.empty_like(h0), torch.empty_like(c0)
    grad_b = None if b is None else torch.empty_like(b)
    # transposed, as C adds them up
    grad_W = h.new_empty(H, 4 * H) if "W" in needed else None
    grad_U = h.new_empty(U.shape[::-1]) if "U" in needed else None
    sites, found = _contiguous_sites(call), []
    own: list[Mapping[str, Tensor | None]] = []
    for site, statistics, external in zip(
        sites, contiguous(*states.statistics()), contiguous(*gradients.statistics()), strict=True
    ):
        found.append(_empty_gradients(site))
        own.append({**found[-1], "statistics": statistics, "grad_statistics": external})
    arguments = _Lstm(
        *(H, min(call.window, _LONGEST), call.over_batch, call.eps),
        input=Input(**pointers(x=x, U=U, grad_x=grad_x, grad_U=grad_U), I=x.shape[-1]),
        **pointers(h0=h0, c0=c0, W=W, weights=weights),
        **pointers(h=h, c=c, kept=kept, grad_h=grad_h, grad_c=grad_c),
        **pointers(grad_h0=grad_h0, grad_c0=grad_c0, grad_W=grad_W, grad_b=grad_b),
        sites=_in_c(sites, own),
    )
    steps = Steps.of(h, B, call.batch_sizes, False)
    run_steps("cayley_lstm_back", steps, arguments, dtype=h.dtype)
    result = {
        "x": grad_x,
        "h0": grad_h0,
        "c0": grad_c0,
        "W": None if grad_W is None else grad_W.mT,
        "b": grad_b,
        "U": None if grad_U is None else grad_U.mT,
    }
    for name, site in zip(("input", "recurrent", "cell"), found, strict=True):
        result |= {f"{name}_{key.removeprefix('grad_')}": value for key, value in site.items()}
    return result


def _contiguous_sites(call: LstmCall) -> list[Site | None]:
    return [None if site is None else Site(*contiguous(*site)) for site in call.sites()]


def _empty_gradients(site: Site | None) -> dict[str, Tensor | None]:
    """Empty tensors for the gradients of a normalisation, under their names in C."""
    if site is None:
        return {}
    return {
        "grad_gamma": torch.empty_like(site.gamma),
        "grad_beta": torch.empty_like(site.beta),
        # past statistics that are not used have no gradient
        "grad_past": None if site.past is None else torch.zeros_like(site.past),
    }


def _in_c(
    sites: Sequence[Site | None], own: Sequence[Mapping[str, Tensor | None]]
) -> ctypes.Array[_Site]:
    """The normalisations as C takes them, each with the tensors of one direction."""
    structures = (_Site * 3)()
    for k, (site, more) in enumerate(zip(sites, own, strict=True)):
        if site is not None:
            rows = 0 if site.given is None else site.given.shape[2]
            structures[k] = _Site(**pointers(**site._asdict(), **more), given_rows=rows)
    return structures
