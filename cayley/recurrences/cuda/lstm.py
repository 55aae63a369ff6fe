"""The LSTM recurrence and its gradient as one CUDA kernel each; see :mod:`cayley.recurrences.lstm`.

A kernel runs all steps, normalisations over the layer included. A block computes one row of the
batch, with the weights in its registers and in shared memory, which also holds the windows. Sizes
and what is normalised are constants of the compiled code. Packed sequences are read as they are.
"""

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from cayley.recurrences.cuda.gates import Layout, Options, best_layout, launch
from cayley.recurrences.cuda.nvrtc import refused
from cayley.recurrences.cuda.packed import step_table
from cayley.recurrences.cuda.plans import chip

__all__ = ["lstm", "lstm_backward", "refusal"]

SITES = (5, 10, 15)  # where the normalisations begin among the tensors


def refusal(*arguments: Any, others: Iterable[Tensor | None] = ()) -> str | None:
    """Why the kernels cannot serve a call; None if they can.

    Arguments:
        arguments: Those of :func:`lstm`.
        others: Further tensors of the call.
    """
    *tensors, batch_sizes, window, over_batch, _ = arguments
    x, h0, *rest = tensors
    if reason := refused(h0, x, *rest, *others):
        return reason
    sites = [tensors[k : k + 5] for k in SITES]
    normed = any(gamma is not None for gamma, *_ in sites)
    if over_batch and normed:
        return "the CUDA kernels normalise over the layer, not over the batch"
    if any(given is not None for *_, given in sites):
        return "the CUDA kernels normalise by statistics of the sequence, not by given ones"
    H, K = h0.shape[-1], _steps(tensors, batch_sizes, window)
    if any(layout(H, K, normed, h0.device.index) is None for layout in (_forward, _backward)):
        name = torch.cuda.get_device_name(h0.device)
        also = f" and windows of {K} steps" if K > 1 else ""
        return f"{4 * H} × {H} weights{also} do not fit on a multiprocessor of {name}"
    return None


def lstm(*arguments: Any) -> tuple[Tensor, ...]:
    """All h and c, the gates or normalised products, and the statistics of every normalisation.

    Arguments are those of the operator in :mod:`cayley.recurrences.lstm`, up to ε.
    """
    *tensors, batch_sizes, window, _, eps = arguments
    K = _steps(tensors, batch_sizes, window)
    x, h0, c0, W, b, *sites, weights = _contiguous(tensors)
    (B, H), device, packed = h0.shape, x.device.index, batch_sizes is not None
    table, T = step_table(batch_sizes, x, B)
    normed = _normed(sites)
    h, c = (x.new_empty(*x.shape[:-1], H) for _ in range(2))
    kept = torch.empty_like(x)
    # 0 for sequences that have ended
    new = x.new_zeros if packed else x.new_empty
    statistics = [new((4, T, B, 1) if there else 0) for there in normed]
    if B > 0:
        options = _options(normed, K > 1, packed, eps)
        launch(
            *("lstm_forward", _forward(H, K, any(normed), device), options, B),
            *(x, h0, c0, W, b, *_read(sites), weights, h, c, kept, *statistics, table, T, B, K),
        )
    return h, c, kept, *statistics


def lstm_backward(*arguments: Any) -> list[Tensor]:
    """Gradients; arguments and result are those of :func:`cayley.recurrences.lstm_gradient`."""
    *tensors, batch_sizes, window, _, eps = arguments
    K = _steps(tensors[11:], batch_sizes, window)
    tensors = _contiguous(tensors)
    external, (_, c, kept, *statistics) = tensors[:5], tensors[5:11]
    x, h0, c0, W, b, *sites, weights = tensors[11:]
    (B, H), device, packed = h0.shape, x.device.index, batch_sizes is not None
    table, T = step_table(batch_sizes, x, B)
    normed = _normed(sites)
    dx, grad_h0, grad_c0 = (torch.empty_like(v) for v in (x, h0, c0))
    nothing = x.new_empty(0)
    da = torch.empty_like(x) if normed[0] or normed[1] else nothing
    # past statistics that are not used have no gradient
    pasts = [nothing if past is None else torch.zeros_like(past) for past in sites[3::5]]
    partial = x.new_empty(B, 22 * H)
    if B > 0:
        options = _options(normed, K > 1, packed, eps)
        launch(
            *("lstm_backward", _backward(H, K, any(normed), device), options, B),
            *(x, *external, c, kept, *statistics, c0, W, *_read(sites), weights),
            *(dx, da, grad_h0, grad_c0, partial, *pasts, table, T, B, K),
        )
    # over the rows, in an order that does not vary; one sum for all
    sums = partial.sum(0).split((4 * H, 4 * H, 4 * H, 4 * H, 4 * H, H, H))
    result = [dx, da, grad_h0, grad_c0, nothing if b is None else sums[4]]
    for there, pair, past in zip(normed, (sums[:2], sums[2:4], sums[5:]), pasts, strict=True):
        result += [*(pair if there else (nothing, nothing)), past]
    return result


def _steps(tensors: list[Any], batch_sizes: Tensor | None, window: int) -> int:
    """The number of steps that a window can have; 1 where nothing is normalised."""
    if all(tensors[k] is None for k in SITES):
        return 1
    if any(tensors[k + 3] is not None for k in SITES):
        return window
    return min(window, len(tensors[0] if batch_sizes is None else batch_sizes))


def _contiguous(tensors: Iterable[Tensor | None]) -> list[Any]:
    return [None if tensor is None else tensor.contiguous() for tensor in tensors]


def _normed(sites: list[Tensor | None]) -> tuple[bool, ...]:
    """Which of the normalisations there are."""
    return tuple(gamma is not None for gamma in sites[::5])


def _read(sites: list[Tensor | None]) -> list[Tensor | None]:
    """γ, β, reference and past of each normalisation."""
    return [tensor for k, tensor in enumerate(sites) if k % 5 < 4]


def _forward(H: int, K: int, normed: bool, device: int) -> Layout | None:
    spare = 48 + 8 * normed + 8 * (K > 1)
    return best_layout(H, ((H, 4),), 1, _extra(K), spare, chip(device).memory)


def _backward(H: int, K: int, normed: bool, device: int) -> Layout | None:
    spare = 64 + 16 * normed + 8 * (K > 1)
    return best_layout(H, ((4 * H, 1),), 5, _extra(K), spare, chip(device).memory)


def _extra(K: int) -> int:
    """Floats for the sums of up to 32 warps, and four numbers of every step in a window."""
    return 3 * (4 * 32 + 4 * K)


@functools.cache
def _options(normed: tuple[bool, ...], windowed: bool, packed: bool, eps: float) -> Options:
    names = ("NORM_X", "NORM_H", "NORM_C", "WINDOWED", "PACKED")
    flags = zip(names, (*normed, windowed, packed), strict=True)
    constants = [(f"bool {name}", str(flag).lower()) for name, flag in flags]
    return (*constants, ("float EPS", f"{float(eps)!r}f"))
