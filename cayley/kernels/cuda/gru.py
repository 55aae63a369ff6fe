"""The gated recurrence and its gradient as one CUDA kernel each; see :mod:`cayley.recurrences.gru`.

A kernel runs all steps. A block computes one row of the batch, with the weights in its registers,
and in shared memory if there are too few; if that is too small too, a team of blocks computes
several rows. With many rows and units, a team has more rows, see
:mod:`~cayley.kernels.cuda.runtime.tiles`, or steps are launched one by one, see
:mod:`~cayley.kernels.cuda.gru_steps`. Sizes are constants of the compiled code. Packed sequences
are read as they are.

Where a block computes a row, the tensors of a call, and those of its results, may be those of G
networks, along one more dimension in front of all others: then one launch runs all networks.
"""

import functools
import math
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
from cayley.kernels.cuda.runtime.networks import MOST_NETWORKS, arrays_of
from cayley.kernels.cuda.runtime.nvrtc import tensor_refusal
from cayley.kernels.cuda.runtime.packed import step_table
from cayley.kernels.cuda.runtime.parts import Part, parts
from cayley.kernels.cuda.runtime.projection import project_on_cuda
from cayley.kernels.cuda.runtime.row_products import LITTLE, RowProduct, row_products
from cayley.kernels.cuda.runtime.stepwise import runs_by_tiles, runs_stepwise
from cayley.kernels.cuda.runtime.team_kernels import run_teams
from cayley.kernels.cuda.runtime.teams import GateProduct, Kind, best_team
from cayley.kernels.cuda.runtime.tiles import TileKind, run_tiles
from cayley.kernels.projection import projection_gradients
from cayley.kernels.steps import product_of_rows

__all__ = ["BACKWARD", "FORWARD", "TILES", "gru", "gru_backward", "refusal", "takes_networks"]

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


def takes_networks(call: GruCall, networks: int) -> bool:
    """Whether one launch runs several networks with calls like this one, which is not refused."""
    if call.batch_sizes is not None or networks > MOST_NETWORKS:
        return False
    H, device = call.h0.shape[-1], call.h0.device.index
    return _forward(H, device) is not None and _backward(H, device) is not None


def gru(call: GruCall, out: GruStates | None = None) -> GruStates:
    """The states of a call, in ``out`` if it is given."""
    *networks, B, H = call.h0.shape
    x = project_on_cuda(call.x, call.U, call.c)
    if out is None:
        out = GruStates(x.new_empty(*x.shape[:-1], H), x.new_empty(x.shape))
    arrays, shared = arrays_of((x, call.h0, call.W, call.b), bool(networks))
    if B > 0:
        _run("forward", _forward, FORWARD, gru_steps, call, (*arrays, *out), shared)
    return out


def gru_backward(
    gradients: GruGradients, states: GruStates, call: GruCall, needed: Collection[str]
) -> dict[str, Tensor | None]:
    """Gradients of a call; of x, h0, W, U and c those that are needed."""
    h, (*networks, B, H) = states.h, call.h0.shape
    arrays, shared = arrays_of((gradients.h, *states, call.h0, call.W), bool(networks))
    G = math.prod(networks)
    N = h.numel() // (G * H)  # rows of all steps of a network
    of_x, of_h0 = "x" in needed, "h0" in needed
    sizes = (0 if of_x else N * 3 * H, N * 2 * H, B * 4 * H, 0 if of_h0 else B * H)
    room, factors, partial, room_h0 = parts(h, *(G * size for size in sizes))
    delta = h.new_empty(states.gates.shape) if of_x else room
    grad_h0 = h.new_empty(call.h0.shape) if of_h0 else room_h0
    if B > 0:
        made = (delta, grad_h0, partial, factors)
        _run("backward", _backward, BACKWARD, gru_steps_backward, call, (*arrays, *made), shared)
    found = _sums(call, N, delta, factors, partial, needed)
    if isinstance(delta, Tensor):
        found["x"] = projection_gradients(delta, call.x, call.U, ("x",))["x"]
    if isinstance(grad_h0, Tensor):
        found["h0"] = grad_h0
    return found


def _sums(
    call: GruCall,
    N: int,
    delta: Tensor | Part,
    factors: Part,
    partial: Part,
    needed: Collection[str],
) -> dict[str, Tensor | None]:
    """Gradients that are sums over all steps; of W and U those that are needed.

    Arguments:
        call: The call.
        N: The number of rows of all steps, of one network.
        delta: What the kernel has left behind, as ``src/gru_backward.cu`` describes.
        factors: The same.
        partial: The same.
        needed: The names of arguments that need a gradient.
    """
    x, h0, U, (*networks, B, H) = call.x, call.h0, call.U, call.h0.shape
    inputs = H if U is None else x.shape[-1]
    grad_W = grad_U = None
    of_W, of_U = "W" in needed, U is not None and "U" in needed
    if 0 < N * 3 * H * (H + inputs) <= LITTLE:
        total, products = h0.new_empty(*networks, 4 * H), []
        if of_W:
            grad_W = h0.new_empty(call.W.shape)
            widths, size = (3 * H, 2 * H), 3 * H * H
            # the addresses of [δ_c], [r h] and the last third of the gradient
            candidate = delta.data_ptr() + 8 * H, factors.data_ptr() + 4 * H
            products.append(RowProduct(delta, factors, grad_W, widths, (2 * H, H), apart=size))
            place = grad_W.data_ptr() + 8 * H * H
            products.append(RowProduct(*candidate, place, widths, (H, H), apart=size))
        if of_U:
            grad_U = h0.new_empty(*networks, 3 * H, inputs)
            (rows,), shared = arrays_of((x,), bool(networks))
            sizes = (3 * H, inputs)
            products.append(RowProduct(delta, rows, grad_U, sizes, sizes, shared=2 * shared))
        G = math.prod(networks)
        row_products(h0.device.index, N, products, partial, total, (B, 4 * H), 0, G)
    else:
        rows, columns = delta.view(*networks, N, 3 * H), factors.view(*networks, N, 2 * H)
        if of_W:
            of_gates = product_of_rows(rows[..., : 2 * H], columns[..., :H])
            of_candidate = product_of_rows(rows[..., 2 * H :], columns[..., H:])
            grad_W = torch.cat((of_gates, of_candidate), -2)
        if of_U:
            grad_U = product_of_rows(rows, x.flatten(len(networks), -2))
        # always in the same order
        total = partial.view(*networks, B, 4 * H).sum(-2)
    grad_c, grad_b = torch.split_with_sizes(total, (3 * H, H), -1)
    return {"W": grad_W, "b": grad_b, "U": grad_U, "c": grad_c}


def _run(
    direction: str,
    best: Callable[[int, int], BlockLayout | None],
    kind: Kind,
    stepwise: Callable[..., None],
    call: GruCall,
    arrays: Sequence[Any],
    shared: int,
) -> None:
    """Launch for all rows, by the plan for their number.

    Arguments:
        direction: Which of the kernels.
        best: The layout of a single block.
        kind: What a team computes.
        stepwise: The function that launches step by step.
        call: The call, of some rows.
        arrays: Those of the kernel.
        shared: Which of them several networks share, as ``src/networks.cuh`` reads it.
    """
    h0, options = call.h0, _options(call)
    (*networks, B, H), device = h0.shape, h0.device.index
    table = step_table(call.batch_sizes, call.x[0] if networks else call.x, B)
    steps = (*table, B, int(call.reverse))
    if layout := best(H, device):
        G = math.prod(networks)
        launch = gate_kernel(device, f"gru_{direction}", layout, options, G > 1)
        launch(B, *arrays, *steps, shared, networks=G)
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
