"""The LSTM recurrence and its gradient as CUDA kernels; see :mod:`cayley.recurrences.lstm`.

A kernel runs all steps, normalisations over the layer included. A block computes one row of the
batch, with the weights in its registers and in shared memory, which also holds the windows; where
that does not suffice, a team of blocks computes some rows. Sizes and what is normalised are
constants of the compiled code. Packed sequences are read as they are.

What does not wait for the recurrence has kernels of its own, which take all steps at once: before
it the statistics of the input, and after the gradient the input's own and those of the parameters.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cayley.kernels.cuda.lstm.kernels import fits, lstm_kernels
from cayley.kernels.cuda.lstm.references import averaged
from cayley.kernels.cuda.runtime.chip import no_room
from cayley.kernels.cuda.runtime.nvrtc import tensor_refusal
from cayley.kernels.cuda.runtime.packed import step_table
from cayley.kernels.cuda.runtime.parts import parts
from cayley.kernels.cuda.runtime.row_products import LITTLE, RowProduct, row_products
from cayley.kernels.steps import outer_products, product_of_rows

__all__ = ["Wanted", "lstm", "lstm_backward", "refusal"]

SITES = (5, 10, 15)  # where the normalisations begin among the tensors


def refusal(*arguments: Any, others: Iterable[Tensor | None] = ()) -> str | None:
    """Why the kernels cannot serve a call; None if they can.

    Arguments:
        arguments: Those of :func:`lstm`.
        others: Further tensors of the call.
    """
    *tensors, batch_sizes, window, over_batch, _ = arguments
    x, h0, *rest = tensors
    if reason := tensor_refusal(h0, x, *rest, *others):
        return reason
    sites = [tensors[k : k + 5] for k in SITES]
    normed = any(gamma is not None for gamma, *_ in sites)
    if over_batch and normed:
        return "the CUDA kernels normalise over the layer, not over the batch"
    if any(given is not None for *_, given in sites):
        return "the CUDA kernels normalise by statistics of the sequence, not by given ones"
    H, K = h0.shape[-1], _steps(tensors, batch_sizes, window)
    if not fits(H, K, normed, h0.device.index):
        also = f" and windows of {K} steps" if K > 1 else ""
        return no_room(f"{4 * H} × {H} weights{also}", h0.device)
    return None


def lstm(*arguments: Any, derive: bool = False) -> tuple[Tensor, ...]:
    """All h and c, the gates or normalised products, and the statistics of every normalisation.

    Arguments:
        arguments: Those of the operator in :mod:`cayley.recurrences.lstm`, up to ε.
        derive: Whether to derive the references, as :func:`~.references.references` does, in place
            of those among the arguments. They are a further result then, (3, B, 1), 0 where none is
            needed: where nothing is normalised, or single steps of recurrent products or cells.
    """
    *tensors, batch_sizes, window, _, eps = arguments
    K = _steps(tensors, batch_sizes, window)
    x, h0, c0, W, b, *sites, weights = _contiguous(tensors)
    (B, H), packed = h0.shape, batch_sizes is not None
    table, T = step_table(batch_sizes, x, B)
    normed = _normed(sites)
    kernels = lstm_kernels(H, K, normed, packed, eps, x.device.index)
    h, c = (x.new_empty(*x.shape[:-1], H) for _ in range(2))
    kept = torch.empty_like(x)
    # 0 for sequences that have ended
    new = x.new_zeros if packed else x.new_empty
    rows = iter(new(sum(normed), 4, T, B, 1).unbind() if any(normed) else ())
    statistics = [next(rows) if there else x.new_empty(0) for there in normed]
    of_h, of_c = (derive and there and window > 1 for there in normed[1:])
    before = B > 0 and (normed[0] or of_h or of_c)
    derived = (x.new_empty if before else x.new_zeros)(3, B, 1) if derive else None
    if before:
        chunks = -(-T // kernels.length) if normed[0] else 0
        matrix, bias, count = averaged(W if of_h else None, b)
        kernels.before(
            *(B * (chunks + derive), x, h0, c0 if of_c else None, matrix, bias, *sites[2:4]),
            *(weights, statistics[0], derived, table, T, B, K, kernels.length, count),
        )
    if derived is not None:
        sites[2::5] = derived.unbind()
    if B > 0:
        given = (x, h0, c0, W, b, *_read(sites), weights, statistics[0])
        kernels.forward(h0, (*given, h, c, kept, *statistics[1:]), table, T, B, K)
    return h, c, kept, *statistics, *(() if derived is None else (derived,))


class Wanted(NamedTuple):
    """Which gradients are wanted, of those that cost something."""

    x: bool
    h0: bool
    c0: bool
    W: bool
    b: bool
    U: bool
    c: bool


def lstm_backward(*arguments: Any, input: Tensor, U: Tensor | None, wanted: Wanted) -> list[Any]:
    """Gradients with respect to the input, h0, c0, W, b, γ, β and past of each site, U and c.

    Arguments:
        arguments: Those of :func:`cayley.recurrences.lstm_gradient`, up to ε and without U: x is
            what the input contributed, U · input + c.
        input: The input; x where there is no U.
        U: Its matrix.
        wanted: Which are wanted; the others are None, and so are those of what is not there.
    """
    *tensors, batch_sizes, window, _, eps = arguments
    K = _steps(tensors[11:], batch_sizes, window)
    tensors = _contiguous(tensors)
    grad_h, grad_c, *external = tensors[:5]
    h, c, kept, *statistics = tensors[5:11]
    x, h0, c0, W, _, *sites, weights = tensors[11:]
    (B, H), packed = h0.shape, batch_sizes is not None
    table, T = step_table(batch_sizes, x, B)
    N = h.numel() // H  # rows of all steps
    normed = of_x, of_h, _ = _normed(sites)
    kernels = lstm_kernels(H, K, normed, packed, eps, x.device.index)
    # of each block the gradients of γ and β of the cell, and those of the other parameters
    kinds = (H, H, *(4 * H,) * 6) if of_x or of_h else (H, H)
    blocks = B * -(-T // kernels.length) if of_x or of_h else B
    # windows read d of steps whose dx is already written
    apart = of_x and of_h and K > 1
    dx, da, d, partial, room_h0, room_c0 = parts(
        x,
        0 if wanted.x else N * 4 * H,
        N * 4 * H if of_x or of_h else 0,
        N * 4 * H if apart else 0,
        blocks * sum(kinds),
        0 if wanted.h0 else B * H,
        0 if wanted.c0 else B * H,
    )
    if wanted.x:
        dx = torch.empty_like(x)
    grad_h0 = torch.empty_like(h0) if wanted.h0 else room_h0
    grad_c0 = torch.empty_like(c0) if wanted.c0 else room_c0
    if not apart:
        d = da if of_x and not of_h else dx
    # past statistics that are not used have no gradient
    pasts = [None if past is None else torch.zeros_like(past) for past in sites[3::5]]
    if B > 0:
        given = (x, grad_h, grad_c, *external[1:], c, kept, *statistics, c0, W, *_read(sites))
        made = (d, da, grad_h0, grad_c0, partial, *pasts[1:])
        kernels.backward(h0, (*given, weights, *made), table, T, B, K, sum(kinds))
    if B > 0 and (of_x or of_h):
        kernels.after(
            *(blocks, d, da, x, kept, external[0], statistics[0], sites[0], *sites[2:4]),
            *(weights, dx, pasts[0], partial, table, T, B, K, kernels.length, sum(kinds)),
        )
    grad_W = x.new_empty(4 * H, H) if wanted.W else None
    grad_U = x.new_empty(U.shape) if U is not None and wanted.U else None
    delta = da if of_x or of_h else dx  # the gradient of W h + b
    # in an order that does not vary; one sum for all
    summed, shape = (partial, (blocks, sum(kinds))) if any(normed) else (dx, (N, 4 * H))
    if not packed and 0 < N * 4 * H * (H + input.shape[-1]) <= LITTLE:
        products = []
        if grad_W is not None:
            products.append(RowProduct(delta, h, grad_W, (4 * H, H), (4 * H, H), h0))
        if grad_U is not None:
            sizes = (4 * H, input.shape[-1])
            products.append(RowProduct(dx, input.contiguous(), grad_U, sizes, sizes))
        total = x.new_empty(shape[1])
        row_products(x.device.index, N, products, summed, total, shape, B)
    else:
        if grad_W is not None:
            grad_W = outer_products(delta.view(*x.shape), h, h0, batch_sizes, False)
        if grad_U is not None:
            grad_U = product_of_rows(dx.view(N, 4 * H), input.flatten(0, -2))
        total = summed.view(*shape).sum(0)
    if of_x or of_h:
        *of_cell, gamma_x, beta_x, gamma_h, beta_h, grad_b, grad_c = total.split(kinds)
    else:
        gamma_x = beta_x = gamma_h = beta_h = None
        of_cell = total.split(kinds) if any(normed) else (None, None)
        grad_b = grad_c = dx.view(N, 4 * H).sum(0) if any(normed) else total
    of_sites: list[Any] = []
    pairs = ((gamma_x, beta_x), (gamma_h, beta_h), of_cell)
    for there, pair, past in zip(normed, pairs, pasts, strict=True):
        of_sites += [*(pair if there else (None, None)), past]
    grad_x = None
    if isinstance(dx, Tensor):
        grad_x = dx if U is None else dx @ U
    return [
        *(grad_x, grad_h0 if wanted.h0 else None, grad_c0 if wanted.c0 else None, grad_W),
        grad_b if wanted.b else None,
        *of_sites,
        *(grad_U, grad_c if wanted.c else None),
    ]


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
    """γ, β and reference of each normalisation, and where the recurrence needs it the past."""
    return [*sites[:3], *sites[5:9], *sites[10:14]]
