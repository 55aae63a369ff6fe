"""The LSTM recurrence and its gradient as one CUDA kernel each; see :mod:`cayley.recurrences.lstm`.

A kernel runs all steps, normalisations over the layer included. A block computes one row of the
batch, with the weights in its registers and in shared memory, which also holds the windows. Sizes
and what is normalised are constants of the compiled code.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from cayley.recurrences.cuda.gates import Layout, Options, best_layout, launch
from cayley.recurrences.cuda.nvrtc import refused
from cayley.recurrences.cuda.plans import chip
from cayley.recurrences.lstm_gradient import reference_gradient

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
    if reason := refused(h0, x, *rest, *others, batch_sizes=batch_sizes):
        return reason
    sites = [tensors[k : k + 5] for k in SITES]
    normed = any(gamma is not None for gamma, *_ in sites)
    if over_batch and normed:
        return "the CUDA kernels normalise over the layer, not over the batch"
    if any(given is not None for *_, given in sites):
        return "the CUDA kernels normalise by statistics of the sequence, not by given ones"
    H, K = h0.shape[-1], _steps(tensors, window)
    if any(layout(H, K, normed, h0.device.index) is None for layout in (_forward, _backward)):
        name = torch.cuda.get_device_name(h0.device)
        also = f" and windows of {K} steps" if K > 1 else ""
        return f"{4 * H} × {H} weights{also} do not fit on a multiprocessor of {name}"
    return None


def lstm(*arguments: Any) -> tuple[Tensor, ...]:
    """All h and c, the gates or normalised products, and the statistics of every normalisation.

    Arguments are those of the operator in :mod:`cayley.recurrences.lstm`, up to ε.
    """
    *tensors, _, window, _, eps = arguments
    K = _steps(tensors, window)
    x, h0, c0, W, b, *sites, weights = _contiguous(tensors, arguments[0])
    (T, B, _), H = x.shape, h0.shape[-1]
    h, c, kept = x.new_empty(T, B, H), x.new_empty(T, B, H), torch.empty_like(x)
    gammas = sites[::5]
    statistics = [x.new_empty((4, T, B, 1) if gamma.numel() else 0) for gamma in gammas]
    if B > 0:
        layout = _forward(H, K, any(map(len, gammas)), x.device.index)
        launch(
            *("lstm_forward", layout, _options(gammas, K, eps)),
            *(x, h0, c0, W, b, *_read(sites), weights, h, c, kept, *statistics, T, B, K),
        )
    return h, c, kept, *statistics


def lstm_backward(*arguments: Any) -> list[Tensor]:
    """Gradients; arguments and result are those of :func:`cayley.recurrences.lstm_gradient`."""
    *tensors, _, window, _, eps = arguments
    K = _steps(tensors[11:], window)
    external = tensors[2:5]
    tensors = _contiguous(tensors, arguments[5])
    grad_h, grad_c, *grad_statistics = tensors[:5]
    _, c, kept, *statistics = tensors[5:11]
    x, h0, c0, W, b, *sites, weights = tensors[11:]
    (T, B, _), H = x.shape, h0.shape[-1]
    gammas = sites[::5]
    dx, grad_h0, grad_c0 = (torch.empty_like(v) for v in (x, h0, c0))
    da = torch.empty_like(x) if gammas[0].numel() or gammas[1].numel() else x.new_empty(0)
    # past statistics that are not used have no gradient
    grad_pasts = [torch.zeros_like(past) for past in sites[3::5]]
    # summed over the rows afterwards, in an order that does not vary
    partial = x.new_empty(B, 18 * H)
    if B > 0:
        layout = _backward(H, K, any(map(len, gammas)), x.device.index)
        launch(
            *("lstm_backward", layout, _options(gammas, K, eps)),
            *(x, grad_h, grad_c, *grad_statistics, c, kept, *statistics, c0, W, *_read(sites)),
            *(weights, dx, da, grad_h0, grad_c0, partial, *grad_pasts, T, B, K),
        )
    gamma_x, gamma_h, beta, bias, cells = partial.split((4 * H, 4 * H, 4 * H, 4 * H, 2 * H), 1)
    gamma_c, beta_c = cells.chunk(2, 1)
    result = [dx, da, grad_h0, grad_c0, bias.sum(0) if b.numel() else x.new_empty(0)]
    pairs = ((gamma_x, beta), (gamma_h, beta), (gamma_c, beta_c))
    for k, parts in enumerate(pairs):
        there = gammas[k].numel()
        result += [part.sum(0) if there else x.new_empty(0) for part in parts]
        result += [
            reference_gradient(statistics[k], external[k], grad_pasts[k], None),
            grad_pasts[k],
        ]
    return result


def _steps(tensors: list[Any], window: int) -> int:
    """The number of steps that a window can have; 1 where nothing is normalised."""
    if all(tensors[k] is None for k in SITES):
        return 1
    if any(tensors[k + 3] is not None for k in SITES):
        return window
    return min(window, len(tensors[0]))


def _contiguous(tensors: Iterable[Tensor | None], like: Tensor) -> list[Tensor]:
    """An empty tensor, which is a null pointer to a kernel, stands for what is not there."""
    return [like.new_empty(0) if tensor is None else tensor.contiguous() for tensor in tensors]


def _read(sites: list[Tensor]) -> list[Tensor]:
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


def _options(gammas: list[Tensor], K: int, eps: float) -> Options:
    norms = zip(("NORM_X", "NORM_H", "NORM_C"), gammas, strict=True)
    flags = {name: gamma.numel() > 0 for name, gamma in norms} | {"WINDOWED": K > 1}
    constants = [(f"bool {name}", str(flag).lower()) for name, flag in flags.items()]
    return (*constants, ("float EPS", f"{float(eps)!r}f"))
