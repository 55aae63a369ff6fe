"""The Elman recurrence and its gradient as one CUDA kernel each.

See :mod:`cayley.recurrences.elman`. A kernel runs all steps. The weights stay in registers, and in
shared memory if there are too few: those of one block if they fit, otherwise those of a cluster of
blocks that send each other their new states. If there are no clusters, or they are too small, a
team of blocks is used; with many rows and units, a team with more rows, see
:mod:`~cayley.kernels.cuda.runtime.tiles`. Sizes are constants of the compiled code. Packed
sequences are read as they are. Complex weights, [[R, −C], [C, R]], are held once: R and C.

The tensors of a call, and those of its results, may be those of G networks, along one more
dimension in front of all others: then one launch runs all networks.
"""

import functools
import itertools
import math
from collections.abc import Collection, Sequence

from torch import Tensor

from cayley.activations import ACTIVATIONS as KNOWN
from cayley.kernels.calls import ElmanCall, ElmanGradients, ElmanStates
from cayley.kernels.crowds import crowd
from cayley.kernels.cuda.runtime.chip import RESERVED, Chip, chip, no_room
from cayley.kernels.cuda.runtime.clusters import Plan, best_plan
from cayley.kernels.cuda.runtime.half_products import outer_products_on_cuda
from cayley.kernels.cuda.runtime.networks import MOST_NETWORKS, arrays_of
from cayley.kernels.cuda.runtime.nvrtc import Kernel, on, tensor_refusal
from cayley.kernels.cuda.runtime.packed import step_table
from cayley.kernels.cuda.runtime.projection import project_on_cuda
from cayley.kernels.cuda.runtime.row_products import RowProduct, row_products
from cayley.kernels.cuda.runtime.stepwise import CLOCK, team_microseconds
from cayley.kernels.cuda.runtime.team_kernels import rounded, run_teams
from cayley.kernels.cuda.runtime.teams import GateProduct, Kind, best_team
from cayley.kernels.cuda.runtime.tiles import TileKind, run_tiles, tile_microseconds
from cayley.kernels.projection import projection_gradients

__all__ = ["ACTIVATIONS", "TILES", "elman", "elman_backward", "refusal", "takes_networks"]

# those of src/activations.cuh
ACTIVATIONS = ("identity", "relu", "leaky_relu", "tanh", "modrelu", "modrelu_stacked")

# Of teams by tiles: blocks of 16 or 32 units, and 64 or 128 rows of a team at every step. On an
# H200 a step takes 4 to 7 microseconds beside its products.
TILES = tuple(
    TileKind(matrices=1, exchanged=2, overhead=5.5, groups=groups, sets=sets)
    for groups, sets in itertools.product((1, 2), (1, 2))
)
# Tiles are taken if they should need less than so much of the time: estimates for clusters with
# many rows are up to a quarter too high.
CLEARLY = 0.85

# Up to so many multiplications the gradients of all parameters are one launch, which takes the host
# half of the time of torch's four to six. Of more of them, torch's take the GPU half of the time.
# Fewer rows than an eighth of the units leave most blocks of the launch idle, and very many keep
# its eight blocks a square busy for long: neither was measured, and both are torch's, too.
FEW, MOST_ROWS = 3e8, 2**14


def refusal(call: ElmanCall, gradients: ElmanGradients | None = None) -> str | None:
    """Why the kernels cannot compute a call, or its gradient; None if they can."""
    x, h0, W, b, U, c, *_ = call
    if call.nonlinearity not in ACTIVATIONS:
        return f"the CUDA kernels have no {call.nonlinearity}"
    if gradients is not None and gradients.z is not None:
        return "the CUDA kernels give first derivatives only"
    if reason := tensor_refusal(h0, x, W, b, U, c, *(gradients or ())):
        return reason
    B, H = h0.shape[-2:]
    if B * H >= 2**31:
        return f"the CUDA kernels take less than 2^31 numbers a step, not {B} × {H}"
    if _plan(call) is not None:
        return None
    kind = _kind(call.nonlinearity, call.is_complex)
    if best_team(H, 1, kind, chip(h0.device.index)) is None:
        return no_room(f"{H} × {H} weights", h0.device)
    return None


def takes_networks(call: ElmanCall, networks: int) -> bool:
    """Whether one launch runs several networks with calls like this one, which is not refused."""
    if call.batch_sizes is not None or networks > MOST_NETWORKS:
        return False
    return isinstance(_plan(call, networks), Plan)


def elman(call: ElmanCall, out: ElmanStates | None = None) -> ElmanStates:
    """The states of a call, in ``out`` if it is given."""
    h0, plan = call.h0, _plan(call)
    inputs = _inputs(call, plan)
    x = call.x if inputs else project_on_cuda(call.x, call.U, call.c)
    if out is None:
        networks, shape = h0.shape[:-2], (*x.shape[:-1], h0.shape[-1])
        z = x.new_empty(shape if KNOWN[call.nonlinearity].needs_z else (*networks, 0))
        out = ElmanStates(x.new_empty(shape), z)
    h, z = out
    b = z if call.b is None else call.b
    if h0.shape[-2] > 0:
        of_input = (call.U, call.c) if inputs else (None, None)
        _launch("forward", call, plan, inputs, (x, h0, call.W, b), of_input, (h, z), ())
    return ElmanStates(h, z)


def elman_backward(
    gradients: ElmanGradients, states: ElmanStates, call: ElmanCall, needed: Collection[str]
) -> dict[str, Tensor | None]:
    """Gradients of a call; of x, W, U and c those that are needed."""
    (h, z), h0, b = states, call.h0, call.b
    saved = z if KNOWN[call.nonlinearity].needs_z else h
    *networks, B, H = h0.shape
    delta, grad_h0 = h.new_empty(*h.shape), h.new_empty(*networks, B, H)
    # summed over the rows afterwards, always in the same order
    partial_b = h.new_empty(*networks, 0) if b is None else h.new_empty(*networks, B, b.shape[-1])
    plan = _plan(call)
    inputs = _inputs(call, plan)
    partial_U = h.new_empty(*networks, B, 2, H) if inputs else None
    if B > 0:
        given = (gradients.h, saved, call.W, partial_b if b is None else b)
        made = (delta, grad_h0, partial_b)
        x = call.x if inputs else None
        _launch("backward", call, plan, inputs, given, (x,), made, (partial_U,))
    found: dict[str, Tensor | None] = {"h0": grad_h0}
    if partial_U is not None:
        found["c"], grad_U = partial_U.sum(-3).unbind(-2)
        found["U"] = grad_U.unsqueeze(-1)
        needed = [name for name in needed if name not in ("c", "U")]
    return _sums(call, h, delta, partial_b, needed) | found


def _sums(
    call: ElmanCall, h: Tensor, delta: Tensor, partial_b: Tensor, needed: Collection[str]
) -> dict[str, Tensor | None]:
    """Gradients by δ: of b, and of x, W, U and c those that are needed.

    Arguments:
        call: The call, of one network or of several.
        h: Its states.
        delta: δ of all steps, in the shape of h.
        partial_b: The gradient of b from each row of the batch, (B, ·).
        needed: The names of arguments that need a gradient.
    """
    x, h0, b, U, (*networks, B, H) = call.x, call.h0, call.b, call.U, call.h0.shape
    G = math.prod(networks)
    N = h.numel() // (G * H)  # rows of all steps of a network
    inputs = 0 if U is None else U.shape[-1]
    is_little = 0 < N * H * (H + inputs) <= FEW and H // 8 <= N <= MOST_ROWS
    if call.batch_sizes is not None or call.reverse or not is_little:
        found = projection_gradients(delta, x, U, needed)
        if "W" in needed:
            found["W"] = outer_products_on_cuda(delta, h, h0, call.batch_sizes, call.reverse)
        return found | {"b": None if b is None else partial_b.sum(-2)}
    found = projection_gradients(delta, x, U, ("x",) if "x" in needed else ())
    products = []
    if "W" in needed:
        (states, first), shared = arrays_of((h, h0), bool(networks))
        sizes, found["W"] = (H, H), h.new_empty(*networks, H, H)
        own = RowProduct(delta, states, found["W"], sizes, sizes, first, shared=2 * shared)
        products.append(own)
    if "U" in needed:
        (rows,), shared = arrays_of((x,), bool(networks))
        sizes, found["U"] = (H, inputs), h.new_empty(*networks, H, inputs)
        # no launch may be empty
        if inputs:
            own = RowProduct(delta, rows, found["U"], sizes, sizes, shared=2 * shared)
            products.append(own)
    # a bias c goes with an activation that has no threshold b
    if b is not None:
        summed, shape = partial_b, (B, b.shape[-1])
    elif "c" in needed:
        summed, shape = delta, (N, H)
    else:
        summed, shape = None, (0, 0)
    total = None if summed is None else h.new_empty(*networks, shape[1])
    found["c" if b is None else "b"] = total
    if b is not None and "c" in needed:
        found["c"] = delta.flatten(len(networks), -2).sum(-2)
    if products or summed is not None:
        row_products(h.device.index, N, products, summed, total, shape, B, G)
    return found


def _inputs(call: ElmanCall, plan: Plan | TileKind | None) -> int:
    """1 if the kernels multiply the input, a single number, themselves; 0 if they do not.

    To read the product takes longer, and so do sums over all steps that another kernel makes.
    """
    if call.U is None or call.U.shape[-1] != 1 or call.batch_sizes is not None:
        return 0
    return _most_inputs(plan, call.h0.device.index) if isinstance(plan, Plan) else 0


@functools.cache
def _most_inputs(plan: Plan, device: int) -> int:
    """How many numbers of the input the kernels of a plan can multiply themselves: 1, or 0."""
    return int(plan.passes == 1 and plan.memory(3) <= chip(device).memory - RESERVED)


def _launch(
    direction: str,
    call: ElmanCall,
    plan: Plan | TileKind | None,
    inputs: int,
    given: Sequence[Tensor],
    of_input: Sequence[Tensor | None],
    made: Sequence[Tensor],
    of_input_made: Sequence[Tensor | None],
) -> None:
    """Launch the kernel of a direction.

    Arguments:
        direction: Which of the kernels.
        call: The call, of one network or of several.
        plan: That of the call; tiles, and teams for None, take one network.
        inputs: 1 if the kernel reads the input itself, and 0 if it does not.
        given: What it reads, of all steps first.
        of_input: What it reads if ``inputs`` is 1; None otherwise.
        made: What it writes.
        of_input_made: What it writes if ``inputs`` is 1; None otherwise.
    """
    *networks, B, _ = call.h0.shape
    nonlinearity, packed = call.nonlinearity, call.batch_sizes is not None
    arrays, shared = arrays_of((*given, *of_input), bool(networks))
    table, T = step_table(call.batch_sizes, given[0][0] if networks else given[0], B)
    steps = (table, T, B, int(call.reverse))
    if not isinstance(plan, Plan):
        options = (
            ("Activation PHI", nonlinearity.upper()),
            ("bool PACKED", str(packed).lower()),
            ("bool COMPLEX", str(call.is_complex).lower()),
        )
        arrays = [*arrays[: len(given)], *made]
        if plan is None:
            kind = _kind(nonlinearity, call.is_complex)
            run_teams(f"elman_team_{direction}", kind, options, call.h0, arrays, *steps)
        else:
            run_tiles(f"elman_tile_{direction}", plan, options, call.h0, arrays, *steps)
    else:
        device = given[0].device.index
        G = math.prod(networks)
        launch = _kernel(device, direction, plan, nonlinearity, packed, inputs, G > 1)
        launch(plan.clusters(B), *arrays, *made, *of_input_made, *steps, shared, networks=G)


def _kind(nonlinearity: str, is_complex: bool = False) -> Kind:
    """What a team of blocks computes, in either direction."""
    product = GateProduct(1, False)
    together = 2 if is_complex or KNOWN[nonlinearity].stacked else 1
    return Kind((product,), totals=0, extra=0, spare=96, together=together, is_complex=is_complex)


def _plan(call: ElmanCall, networks: int = 0) -> Plan | TileKind | None:
    """The plan for a call, or tiles if they are faster; None for teams.

    A plan of clusters is one only if the device runs clusters of that size.

    Ask once a call: other threads may come and make it a crowd meanwhile.

    Arguments:
        call: The call, of one network or of several.
        networks: How many networks a call like it would run; 0 for those that it does.
    """
    *own, B, H = call.h0.shape
    networks, device = networks or sum(own), call.h0.device.index
    at_once = max(crowd(device), networks)
    # networks that share a launch wait for one another
    apart = at_once > 1 and networks == 0
    rows, device_chip = max(B, 1), chip(device)
    plan = best_plan(H, rows, device_chip, call.is_complex, at_once, apart)
    pairs = call.is_complex or KNOWN[call.nonlinearity].stacked
    # tiles take the whole chip for one network
    alone = at_once == 1 and not own and not pairs
    if plan is not None:
        if alone and (kind := _best_tiles(H, rounded(rows), plan, device_chip)):
            return kind
        packed = call.batch_sizes is not None
        if plan.blocks == 1 or _clusters(device, plan, call.nonlinearity, packed) > 0:
            return plan
    return _best_tiles(H, rounded(rows), None, device_chip) if alone else None


@functools.cache
def _best_tiles(H: int, B: int, plan: Plan | None, chip: Chip) -> TileKind | None:
    """The fastest tiles, if they are clearly faster than the plan, or than teams without one."""
    if plan is not None and plan.blocks == 1:
        return None
    if plan is None:
        least = team_microseconds(H, B, _kind("identity"), chip)
    else:
        least = plan.cost(B, chip) / CLOCK
    times = {kind: tile_microseconds(H, B, kind, chip) for kind in TILES}
    kind = min(TILES, key=times.__getitem__)
    return kind if times[kind] < CLEARLY * least else None


@functools.cache
def _clusters(device: int, plan: Plan, nonlinearity: str, packed: bool) -> int:
    """How many clusters run at a time; none on a part of a GPU with too few multiprocessors."""
    with on(device):
        return _kernel(device, "forward", plan, nonlinearity, packed, 0).resident_clusters()


@functools.cache
def _kernel(
    device: int,
    direction: str,
    plan: Plan,
    nonlinearity: str,
    packed: bool,
    inputs: int,
    several: bool = False,
) -> Kernel:
    streams = 1 if direction == "forward" else 2 + inputs  # arrays that it reads beside its states
    sizes, memory = plan.sizes(nonlinearity, packed, inputs, several), plan.memory(streams)
    with on(device):
        return Kernel(f"elman_{direction}", sizes, plan.threads, plan.blocks, memory)
