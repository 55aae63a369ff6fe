"""The gated recurrence and its gradient as one CUDA kernel each; see :mod:`cayley.recurrences.gru`.

A kernel runs all steps. A block computes one row of the batch, with the weights in its registers,
and in shared memory where those do not suffice; where that does not suffice either, a team of
blocks computes some rows. Sizes are constants of the compiled code. Packed sequences are read as
they are.
"""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from cayley.kernels.cuda.runtime.blocks import BlockLayout, Options, best_block_layout, gate_kernel
from cayley.kernels.cuda.runtime.chip import chip, no_room
from cayley.kernels.cuda.runtime.nvrtc import tensor_refusal
from cayley.kernels.cuda.runtime.packed import step_table
from cayley.kernels.cuda.runtime.parts import parts
from cayley.kernels.cuda.runtime.row_products import LITTLE, RowProduct, row_products
from cayley.kernels.cuda.runtime.team_kernels import run_teams
from cayley.kernels.cuda.runtime.teams import GateProduct, Kind, best_team

__all__ = ["gru", "gru_backward", "refusal"]

# of teams of blocks
FORWARD = Kind((GateProduct(2, False), GateProduct(1, False)), totals=0, extra=0, spare=104)
BACKWARD = Kind((GateProduct(1, False), GateProduct(2, True)), totals=0, extra=0, spare=112)


def refusal(h0: Tensor, *others: Tensor | None, grad_saved: Tensor | None = None) -> str | None:
    """Why the kernels cannot serve a call; None if they can.

    Arguments:
        h0: The state before the first step, (B, H).
        others: All other tensors of the call.
        grad_saved: The gradient of the gates.
    """
    if grad_saved is not None:
        return "the CUDA kernels give first derivatives only"
    if reason := tensor_refusal(h0, *others):
        return reason
    H = h0.shape[-1]
    if not _fits(H, h0.device.index):
        return no_room(f"{3 * H} × {H} weights", h0.device)
    return None


def gru(
    x: Tensor,
    h0: Tensor,
    W: Tensor,
    b: Tensor | None,
    batch_sizes: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """All h, and all [r, u, c] in the layout of x."""
    B, H = h0.shape
    x, h0, W = x.contiguous(), h0.contiguous(), W.contiguous()
    h, saved = x.new_empty(*x.shape[:-1], H), torch.empty_like(x)
    bias = None if b is None else b.contiguous()
    if B > 0:
        table, T = step_table(batch_sizes, x, B)
        arrays, options = (x, h0, W, bias, h, saved), _options(b, table)
        if layout := _forward(H, x.device.index):
            kernel = gate_kernel(x.device.index, "gru_forward", layout, options)
            kernel(B, *arrays, table, T, B, int(reverse))
        else:
            steps = (table, T, B, int(reverse))
            run_teams("gru_team_forward", FORWARD, options, h0, arrays, *steps)
    return h, saved


def gru_backward(
    grad_h: Tensor,
    h: Tensor,
    saved: Tensor,
    x: Tensor,
    h0: Tensor,
    W: Tensor,
    b: Tensor | None,
    U: Tensor | None,
    batch_sizes: Tensor | None,
    reverse: bool,
    wanted: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients with respect to x, h0, W, b, U and c; empty where they are not wanted."""
    of_x, of_W, of_U, of_c = wanted
    (B, H), device = h0.shape, h.device.index
    N = h.numel() // H  # rows of all steps
    grad_h, h, saved, h0, matrix = (v.contiguous() for v in (grad_h, h, saved, h0, W))
    room, factors, partial = parts(h, 0 if of_x else N * 3 * H, N * 2 * H, B * 4 * H)
    delta = torch.empty_like(saved) if of_x else room
    grad_h0 = torch.empty_like(h0)
    if B > 0:
        table, T = step_table(batch_sizes, h, B)
        arrays = (grad_h, h, saved, h0, matrix, delta, grad_h0, partial, factors)
        options = _options(b, table)
        if layout := _backward(H, device):
            kernel = gate_kernel(device, "gru_backward", layout, options)
            kernel(B, *arrays, table, T, B, int(reverse))
        else:
            steps = (table, T, B, int(reverse))
            run_teams("gru_team_backward", BACKWARD, options, h0, arrays, *steps)
    grad_W = h.new_empty(W.shape if of_W else (0, 0))
    grad_U = h.new_empty((0, 0) if U is None or not of_U else U.shape)
    if 0 < N * 3 * H * (H + x.shape[-1]) <= LITTLE:
        total, products = h.new_empty(4 * H), []
        if of_W:
            widths = (3 * H, 2 * H)
            # the addresses of [δ_c], [r h] and the last third of the gradient
            candidate = delta.data_ptr() + 8 * H, factors.data_ptr() + 4 * H
            products.append(RowProduct(delta, factors, grad_W, widths, (2 * H, H)))
            place = grad_W.data_ptr() + 8 * H * H
            products.append(RowProduct(*candidate, place, widths, (H, H)))
        if of_U:
            sizes = (3 * H, x.shape[-1])
            products.append(RowProduct(delta, x.contiguous(), grad_U, sizes, sizes))
        row_products(device, N, products, partial, total, (B, 4 * H), 0)
    else:
        rows, columns = delta.view(N, 3 * H).mT, factors.view(N, 2 * H)
        if of_W:
            torch.mm(rows[: 2 * H], columns[:, :H], out=grad_W[: 2 * H])
            torch.mm(rows[2 * H :], columns[:, H:], out=grad_W[2 * H :])
        if of_U:
            torch.mm(rows, x.flatten(0, -2), out=grad_U)
        # in an order that does not vary
        total = partial.view(B, 4 * H).sum(0)
    grad_c, grad_b = total.split((3 * H, H))
    nothing = h.new_empty(0)
    return (
        nothing if not isinstance(delta, Tensor) else delta if U is None else delta @ U,
        grad_h0,
        grad_W,
        nothing if b is None else grad_b,
        grad_U,
        grad_c if of_c else nothing,
    )


@functools.cache
def _fits(H: int, device: int) -> bool:
    for layout, kind in ((_forward, FORWARD), (_backward, BACKWARD)):
        if layout(H, device) is None and best_team(H, 1, kind, chip(device)) is None:
            return False
    return True


def _forward(H: int, device: int) -> BlockLayout | None:
    return best_block_layout(H, ((H, 2), (H, 1)), 2, 0, 48, chip(device).memory)


def _backward(H: int, device: int) -> BlockLayout | None:
    return best_block_layout(H, ((H, 1), (2 * H, 1)), 5, 0, 64, chip(device).memory)


def _options(b: Tensor | None, table: Tensor | None) -> Options:
    phi, packed = "TANH" if b is None else "MODRELU", "false" if table is None else "true"
    return ("Activation PHI", phi), ("bool PACKED", packed)
