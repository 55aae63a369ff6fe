"""CUDA kernels of the LSTM with statistics of each unit over the batch, or given statistics.

A block computes some units for all rows, so that statistics, windows and their gradients stay
inside it. At every step, the blocks only exchange the states and, in the backward pass, the
gradients of the gates, which are four times as many: there, blocks that form a cluster share the
rows of their products. All steps and all three normalisations are one kernel, and their gradient is
another.

A warp has rows of one unit, and so the contribution of the input, and what is kept of it, are best
read where the rows of a feature lie side by side. Any contribution can be read, and what is kept
and the gradient are as it is.
"""

import functools
from collections.abc import Collection
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from cayley.kernels.calls import LstmCall, LstmGradients, LstmStates, Site
from cayley.kernels.cuda.lstm.batch_layout import FEATURES, BatchLayout, best_batch_layout
from cayley.kernels.cuda.lstm.kernels import window_room
from cayley.kernels.cuda.runtime.chip import chip, no_room
from cayley.kernels.cuda.runtime.nvrtc import Kernel, on
from cayley.kernels.cuda.runtime.packed import step_table
from cayley.kernels.cuda.runtime.row_products import LITTLE, RowProduct, row_products
from cayley.kernels.memory import readable
from cayley.kernels.projection import projection_gradients
from cayley.kernels.steps import outer_products

__all__ = ["batch_lstm", "batch_lstm_backward", "joins_rows", "refusal"]

FLAGS = ("NORM_X", "NORM_H", "NORM_C", "GIVEN", "WINDOWED", "PACKED", "EXTERNAL")
NOTHING = Site(*[cast(Any, None)] * len(Site._fields))


def joins_rows(call: LstmCall) -> bool:
    """Whether a call is for these kernels: over the batch, or with given statistics."""
    for site in call.sites():
        if site is not None and (call.over_batch or site.given is not None):
            return True
    return False


def refusal(call: LstmCall) -> str | None:
    """Why the kernels cannot compute a call that joins rows; None if they can."""
    sites = [site for site in call.sites() if site is not None]
    given = [site.given is not None for site in sites]
    (B, H), K = call.h0.shape, _window_steps(call)
    if any(given) and not all(given):
        return "the CUDA kernels take given statistics for all normalisations, or for none"
    if not all(given) and any(site.past is not None for site in sites):
        return "the CUDA kernels do not support a past of statistics over the batch"
    if B == 0:
        return "the CUDA kernels cannot compute statistics of an empty batch"
    if best_batch_layout(H, B, window_room(K), chip(call.h0.device.index)) is None:
        also = f" and windows of {K} steps" if K > 1 else ""
        return no_room(f"{4 * H} × {H} weights, {B} rows{also}", call.h0.device)
    return None


def batch_lstm(
    call: LstmCall, contribution: Tensor, *, derive: bool = False
) -> tuple[LstmStates, tuple[Tensor, ...]]:
    """The states, cells and statistics of a call.

    Arguments:
        call: The call, whose x and U are not read.
        contribution: The contribution of the input, (T, B, 4H) or (N, 4H), in rows or in columns.
        derive: Whether to derive the references, instead of using those of the call.

    Returns:
        The states, and the derived references, (1, 4H), (1, 4H) and (1, H), which are 0 where none
        is needed.
    """
    h0, c0, W = (readable(v) for v in (call.h0, call.c0, call.W))
    x, of_x = _with_strides(contribution)
    B, H = call.h0.shape
    table, T = step_table(call.batch_sizes, x, B)
    h, c = (x.new_empty(*x.shape[:-1], H) for _ in range(2))
    _expect(h)
    kept, of_kept = _with_strides(torch.empty_like(x))
    statistics = [
        x.new_empty(0)
        if site is None or site.given is not None
        else x.new_empty(4, T, 1, len(site.gamma))
        for site in call.sites()
    ]
    tensors, rows = _read(call)
    derived = x.new_empty(1, FEATURES * H) if derive else None
    arrays = (x, h0, c0, W, readable(call.b), *tensors, derived, h, c, kept, *statistics, table)
    numbers = (T, B, _window_steps(call), *rows, *of_x, *of_kept)
    _kernel(call, "lstm_batch_forward")(1, *arrays, *numbers)
    references = () if derived is None else derived.split((4 * H, 4 * H, H), 1)
    return LstmStates(h, c, kept, *statistics), references


def batch_lstm_backward(
    gradients: LstmGradients,
    states: LstmStates,
    call: LstmCall,
    needed: Collection[str],
    contribution: Tensor,
) -> dict[str, Tensor | None]:
    """Gradients of a call; for x, W and U only those that are needed.

    That of c, a bias that is part of the contribution of the input, is there unless statistics are
    given.

    Arguments:
        gradients: The gradients of the states.
        states: The results of the call.
        call: The call.
        needed: The names of arguments that need a gradient.
        contribution: The contribution of the input, which is not read if only the cell is
            normalised.
    """
    h0, c0, W = (readable(v) for v in (call.h0, call.c0, call.W))
    x, of_x = _with_strides(contribution)
    grad_h, grad_c, *external = (
        readable(v) for v in (gradients.h, gradients.c, *gradients.statistics())
    )
    h, c, *statistics = (v.contiguous() for v in (states.h, states.c, *states.statistics()))
    kept, of_kept = _with_strides(states.kept)
    B, H = call.h0.shape
    table, T = step_table(call.batch_sizes, x, B)
    dx, of_dx = _with_strides(torch.empty_like(x))
    da = x.new_empty(x.shape)
    _expect(da)
    grad_h0, grad_c0 = torch.empty_like(h0), torch.empty_like(c0)
    parameters = x.new_empty(26 * H)
    tensors, rows = _read(call)
    arrays = (
        *(x, grad_h, grad_c, *external, c, kept, *statistics, c0, W, *tensors),
        *(dx, da, grad_h0, grad_c0, parameters, table),
    )
    numbers = (T, B, _window_steps(call), *rows, *of_x, *of_kept, *of_dx)
    is_external = any(gradient is not None for gradient in external)
    _kernel(call, "lstm_batch_backward", is_external)(1, *arrays, *numbers)
    names = ("cell_beta", "cell_gamma", "input_beta", "input_gamma")
    names += ("recurrent_beta", "recurrent_gamma", "b", "c")
    found = dict(zip(names, parameters.split((H, H, *(4 * H,) * 6)), strict=True))
    return {
        **_matrix_gradients(dx, da, h, call._replace(h0=h0), {*needed}),
        **{"h0": grad_h0, "c0": grad_c0},
        **found,
    }


def _matrix_gradients(
    dx: Tensor, da: Tensor, h: Tensor, call: LstmCall, needed: set[str]
) -> dict[str, Tensor | None]:
    """Those of x, U and W that are needed.

    Arguments:
        dx: The gradient of the contribution of the input.
        da: That of the recurrent products, with the gates of a unit side by side.
        h: All states.
        call: The call.
        needed: The names of arguments that need a gradient.
    """
    input, U, H = call.x, call.U, h.shape[-1]
    N, width = dx.numel() // (4 * H), 4 * H
    inputs = 0 if U is None else U.shape[-1]
    one_launch = N * width * inputs <= LITTLE  # for U
    found = projection_gradients(dx, input, U, needed & ({"x"} if one_launch else {"x", "U"}))
    products = []
    if "W" in needed and call.batch_sizes is None and N * width * H <= LITTLE:
        found["W"] = own = h.new_empty(width, H)
        products.append(RowProduct(da, h, own, (width, H), (width, H), call.h0, gates=4))
    elif "W" in needed:
        # its rows are in the order of da, which one launch for all puts right by itself
        W = outer_products(da, h, call.h0, call.batch_sizes, False)
        found["W"] = W.view(H, 4, H).transpose(0, 1).reshape(width, H)
    if U is not None and "U" in needed and one_launch:
        found["U"] = own = h.new_empty(U.shape)
        widths, sizes = (_with_strides(dx)[1][0], inputs), (width, inputs)
        products.append(RowProduct(dx, readable(input), own, widths, sizes))
    if products:
        row_products(h.device.index, N, products, None, None, (0, 0), len(call.h0))
    return found


def _with_strides(x: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """A tensor (..., F) as kernels read it, and how far it is to the next row and feature."""
    across = not x.is_contiguous() and x.movedim(-1, 0).is_contiguous()
    if across and not (x.is_neg() or x._is_zerotensor()):
        return x, (1, x.shape[:-1].numel())
    return readable(x), (x.shape[-1], 1)


def _window_steps(call: LstmCall) -> int:
    """The number of steps that a window can have; 1 if statistics are given.

    A sequence of one step has windows, too: what means are measured from depends on it.
    """
    if any(site is not None and site.given is not None for site in call.sites()):
        return 1
    T = len(call.x if call.batch_sizes is None else call.batch_sizes)
    return min(call.window, max(2, T))


def _expect(array: Tensor) -> None:
    """Fill an array with machine::MISSING, which marks a number that is not yet written."""
    array.view(torch.int32).fill_(-1)


def _read(call: LstmCall) -> tuple[list[Tensor | None], list[int]]:
    """γ, β, reference and given statistics of each normalisation; the rows of given ones."""
    tensors: list[Tensor | None] = []
    rows = []
    for site in call.sites():
        gamma, beta, reference, _, given = NOTHING if site is None else site
        tensors += [readable(v) for v in (gamma, beta, reference, given)]
        rows.append(1 if given is None else given.shape[2])
    return tensors, rows


def _kernel(call: LstmCall, source: str, is_external: bool = False) -> Kernel:
    (B, H), K, device = call.h0.shape, window_room(_window_steps(call)), call.h0.device.index
    layout = best_batch_layout(H, B, K, chip(device))
    if layout is None:
        raise NotImplementedError(f"expected a size that refusal() accepts, for {source}")
    given = any(site is not None and site.given is not None for site in call.sites())
    norms = (site is not None for site in call.sites())
    flags = (*norms, given, K > 1, call.batch_sizes is not None, is_external)
    return _compiled(source, layout, K, flags, call.eps, device)


@functools.cache
def _compiled(
    source: str, layout: BatchLayout, K: int, flags: tuple[bool, ...], eps: float, device: int
) -> Kernel:
    options = [(f"bool {name}", str(flag).lower()) for name, flag in zip(FLAGS, flags, strict=True)]
    options.append(("float EPS", f"{float(eps)!r}f"))
    share = layout.forward if source == "lstm_batch_forward" else layout.backward
    sizes, memory = layout.sizes(share, (*options,)), layout.memory(K)
    threads, blocks, team = layout.block(share), layout.blocks(share), share.team
    with on(device):
        kernel = Kernel(source, sizes, threads, blocks, memory, together=True, cluster=team)
        if team > 1 and kernel.resident_clusters() * team < blocks:
            # how many clusters run at a time is known only now; without clusters all blocks run
            alone = replace(layout, backward=share._replace(workers=0, team=1))
            return _compiled(source, alone, K, flags, eps, device)
        return kernel
