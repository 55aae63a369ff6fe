"""The gated recurrence and its gradient as one CUDA kernel each; see :mod:`cayley.recurrences.gru`.

A kernel runs all steps. A block computes one row of the batch, with the weights in its registers,
and in shared memory if there are too few; if that is too small too, a team of blocks computes
several rows. With many rows and units, a team has more rows, see
:mod:`~cayley.kernels.cuda.runtime.tiles`, or steps are launched one by one, see
:mod:`~cayley.kernels.cuda.gru_steps`. Sizes are constants of the compiled code. Packed sequences
are read as they are.
"""

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from cayley.kernels.calls import GruCall, GruGradients, GruStates
from cayley.kernels.cuda.gru_steps import gru_steps, gru_steps_backward
from cayley.kernels.cuda.runtime.blocks import (
    BlockLayout,
    Options,
    best_block_layout,
    gate_kernel,
)
from cayley.kernels.cuda.runtime.chip import chip, no_room
from cayley.kernels.cuda.runtime.nvrtc import tensor_refusal
from cayley.kernels.cuda.runtime.packed import step_table
from cayley.kernels.cuda.runtime.parts import parts
from cayley.kernels.cuda.runtime.projection import project_on_cuda
from cayley.kernels.cuda.runtime.row_products import LITTLE, RowProduct, row_products
from cayley.kernels.cuda.runtime.stepwise import runs_by_tiles, runs_stepwise
from cayley.kernels.cuda.runtime.team_kernels import run_teams
from cayley.kernels.cuda.runtime.teams import GateProduct, Kind, best_team
from cayley.kernels.cuda.runtime.tiles import TileKind, run_tiles
from cayley.kernels.memory import readable

__all__ = ["BACKWARD", "FORWARD", "TILES", "gru", "gru_backward", "refusal"]

# of teams of blocks
FORWARD = Kind((GateProduct(2, False), GateProduct(1, False)), totals=0, extra=0, spare=104)
BACKWARD = Kind((GateProduct(1, False), GateProduct(2, True)), totals=0, extra=0, spare=112)
# of teams by tiles
TILES = {
    "forward": TileKind(matrices=3, exchanged=2, overhead=7.0),
    "backward": TileKind(matrices=3, exchanged=4, overhead=10.0),
}


def refusal(call: GruCall, gradients: GruGradients | None = None) -> str | None:
    """Why the kernels cannot compute a call, or its gradient; None if they can."""
    if gradients is not None and gradients.gates is not None:
        return "the CUDA kernels give first derivatives only"
    h0 = call.h0
    tensors = (call.x, call.W, call.b, call.U, call.c)
    if reason := tensor_refusal(h0, *tensors, *(gradients or ())):
        return reason
    H = h0.shape[-1]
    if not _has_room(H, h0.device.index):
        return no_room(f"{3 * H} × {H} weights", h0.device)
    return None


def gru(call: GruCall, out: GruStates | None = None) -> GruStates:
    """The states of a call, in ``out`` if it is given."""
    B, H = call.h0.shape
    x = readable(project_on_cuda(call.x, call.U, call.c))
    h0, W = readable(call.h0), readable(call.W)
    if out is None:
        out = GruStates(x.new_empty(*x.shape[:-1], H), torch.empty_like(x))
    h, gates = out
    bias = readable(call.b)
    if B > 0:
        _run("forward", _forward, FORWARD, gru_steps, call, h0, (x, h0, W, bias, h, gates))
    return GruStates(h, gates)


def gru_backward(
    gradients: GruGradients, states: GruStates, call: GruCall, needed: Collection[str]
) -> dict[str, Tensor | None]:
    """Gradients of a call; of x, h0, W, U and c those that are needed."""
    x, U, (B, H), device = call.x, call.U, call.h0.shape, call.h0.device.index
    grad_h, h, gates = (readable(v) for v in (gradients.h, states.h, states.gates))
    h0, W = readable(call.h0), readable(call.W)
    N = h.numel() // H  # rows of all steps
    of_x, of_h0 = "x" in needed, "h0" in needed
    room, factors, partial, room_h0 = parts(
        h, 0 if of_x else N * 3 * H, N * 2 * H, B * 4 * H, 0 if of_h0 else B * H
    )
    delta = torch.empty_like(gates) if of_x else room
    grad_h0 = torch.empty_like(h0) if of_h0 else room_h0
    if B > 0:
        arrays = (grad_h, h, gates, h0, W, delta, grad_h0, partial, factors)
        _run("backward", _backward, BACKWARD, gru_steps_backward, call, h0, arrays)
    grad_W = h.new_empty(W.shape) if "W" in needed else None
    grad_U = h.new_empty(U.shape) if U is not None and "U" in needed else None
    inputs = H if U is None else x.shape[-1]
    if 0 < N * 3 * H * (H + inputs) <= LITTLE:
        total, products = h.new_empty(4 * H), []
        if grad_W is not None:
            widths = (3 * H, 2 * H)
            # the addresses of [δ_c], [r h] and the last third of the gradient
            candidate = delta.data_ptr() + 8 * H, factors.data_ptr() + 4 * H
            products.append(RowProduct(delta, factors, grad_W, widths, (2 * H, H)))
            place = grad_W.data_ptr() + 8 * H * H
            products.append(RowProduct(*candidate, place, widths, (H, H)))
        if grad_U is not None:
            sizes = (3 * H, inputs)
            products.append(RowProduct(delta, readable(x), grad_U, sizes, sizes))
        row_products(device, N, products, partial, total, (B, 4 * H), 0)
    else:
        rows, columns = delta.view(N, 3 * H).mT, factors.view(N, 2 * H)
        if grad_W is not None:
            torch.mm(rows[: 2 * H], columns[:, :H], out=grad_W[: 2 * H])
            torch.mm(rows[2 * H :], columns[:, H:], out=grad_W[2 * H :])
        if grad_U is not None:
            torch.mm(rows, x.flatten(0, -2), out=grad_U)
        # always in the same order
        total = partial.view(B, 4 * H).sum(0)
    grad_c, grad_b = torch.split_with_sizes(total, (3 * H, H))
    found: dict[str, Tensor | None] = {"W": grad_W, "b": grad_b, "U": grad_U, "c": grad_c}
    if isinstance(delta, Tensor):
        found["x"] = delta if U is None else delta @ U
    if isinstance(grad_h0, Tensor):
        found["h0"] = grad_h0
    return found


def _run(
    direction: str,
    best: Callable[[int, int], BlockLayout | None],
    kind: Kind,
    stepwise: Callable[..., None],
    call: GruCall,
    h0: Tensor,
    arrays: Sequence[Any],
) -> None:
    """Launch for all rows of h0, by the plan for their number.

    Arguments:
        direction: Which of the kernels.
        best: The layout of a single block.
        kind: What a team computes.
        stepwise: The function that launches step by step.
        call: The call.
        h0: The states before the first step, (B, H), with B > 0.
        arrays: Those of the kernel.
    """
    (B, H), device, options = h0.shape, h0.device.index, _options(call)
    steps = (*step_table(call.batch_sizes, call.x, B), B, int(call.reverse))
    if layout := best(H, device):
        gate_kernel(device, f"gru_{direction}", layout, options)(B, *arrays, *steps)
    elif runs_by_tiles(h0, kind, TILES[direction]):
        run_tiles(f"gru_tile_{direction}", TILES[direction], options, h0, arrays, *steps)
    elif runs_stepwise(h0, kind):
        stepwise(*arrays, options, call.batch_sizes, *steps)
    else:
        run_teams(f"gru_team_{direction}", kind, options, h0, arrays, *steps)


@functools.cache
def _has_room(H: int, device: int) -> bool:
    for layout, kind in ((_forward, FORWARD), (_backward, BACKWARD)):
        if layout(H, device) is None and best_team(H, 1, kind, chip(device)) is None:
            return False
    return True


def _forward(H: int, device: int) -> BlockLayout | None:
    return best_block_layout(H, ((H, 2), (H, 1)), 2, 0, 48, chip(device).memory)


def _backward(H: int, device: int) -> BlockLayout | None:
    return best_block_layout(H, ((H, 1), (2 * H, 1)), 5, 0, 64, chip(device).memory)


def _options(call: GruCall) -> Options:
    phi = "TANH" if call.b is None else "MODRELU"
    packed = "false" if call.batch_sizes is None else "true"
    return ("Activation PHI", phi), ("bool PACKED", packed)
