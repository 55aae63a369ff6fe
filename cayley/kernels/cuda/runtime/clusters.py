"""How the weights of a recurrence are laid out over the threads of a block or a cluster."""

import functools
import itertools
import math
from dataclasses import dataclass, replace

from cayley.kernels.cuda.runtime.chip import RESERVED, Chip, registers
from cayley.kernels.cuda.runtime.nvrtc import cluster_line, constants

__all__ = ["Plan", "best_plan"]

# rows of a cluster, beyond which there are no other plans: 8 passes of 4
MOST_NEEDED = 32


@dataclass(frozen=True)
class Plan:
    """A layout of H × H weights, as ``src/product.cuh`` and ``src/states.cuh`` describe it.

    Attributes:
        H: The number of units.
        blocks: The number of blocks of a cluster; each computes a part of the units.
        rows: The rows of the batch that are computed together.
        passes: ``passes`` times ``rows`` are the rows of a cluster.
        outputs: The units that a group of lanes computes.
        splits: The lanes of a group; each sums over a part of the inputs.
        vector: The states that a lane reads at a time.
        kept: How often it does so with weights that are in its registers.
        is_complex: Whether the weights are those of H/2 complex units, [[R, −C], [C, R]]: R and C
            are held once.
    """

    H: int
    blocks: int
    rows: int
    passes: int
    outputs: int
    splits: int
    vector: int
    kept: int
    is_complex: bool = False

    @property
    def chunks(self) -> int:
        """How often a lane reads states."""
        return -(-self.H // (self.splits * self.vector))

    @property
    def shared(self) -> int:
        """How often it does so with weights that are in shared memory."""
        return self.chunks - self.kept

    @property
    def weights(self) -> int:
        """The weights that a lane holds for each time."""
        return self.outputs * self.vector // (2 if self.is_complex else 1)

    @property
    def threads(self) -> int:
        """Threads of a block, in whole warps."""
        groups = -(-self.H // (self.blocks * self.outputs))
        return -(-groups * self.splits // 32) * 32

    @property
    def values(self) -> int:
        """The number of new states that a lane computes."""
        return max(1, self.rows * self.outputs // self.splits)

    @property
    def deferred(self) -> bool:
        """Whether a pass is completed during the next one, as ``src/elman.cuh`` does."""
        return self.is_complex and self.passes > 1 and self.rows * self.outputs <= 16

    @property
    def depth(self) -> int:
        """One more than the number of steps between reading an input and using it."""
        return 8 if self.blocks == 1 else 4

    def memory(self, streams: int) -> int:
        """Bytes of shared memory with so many input arrays."""
        states = 2 * self.rows * self.chunks * self.splits * self.vector
        barriers = 4 if self.blocks > 1 else 0
        weights = self.shared * self.weights * self.threads
        ahead = self.depth * streams * self.values * self.threads
        aside = self.passes * self.values * self.threads
        return 4 * (self.passes * (states + barriers) + weights + ahead + aside)

    def clusters(self, B: int) -> int:
        """How many clusters compute B rows."""
        return -(-B // (self.rows * self.passes))

    def sizes(
        self, nonlinearity: str, packed: bool = False, inputs: int = 0, several: bool = False
    ) -> str:
        """The header ``sizes.cuh``, for dense or packed sequences, one network or several."""
        names = ("H", "blocks", "rows", "passes", "outputs", "splits", "vector", "shared")
        numbers = {name.upper(): getattr(self, name) for name in (*names, "threads", "depth")}
        return (
            constants(**numbers, INPUTS=inputs, SEVERAL=int(several))
            + f"constexpr Activation PHI = {nonlinearity.upper()};\n"
            + f"constexpr bool PACKED = {str(packed).lower()};\n"
            + f"constexpr bool COMPLEX = {str(self.is_complex).lower()};\n"
            + cluster_line(self.blocks)
        )

    def cost(self, B: int, chip: Chip, networks: int = 1, apart: bool = False) -> float:
        """Approximate cycles of a step of all networks, fitted to 400 timings on an H200."""
        warps = self.threads // 32
        busiest = -(-warps // 4)  # warps of the busiest quarter of a multiprocessor
        products = busiest * self.rows * self.outputs * self.vector * self.chunks
        reads = warps * (
            self.rows * self.chunks * max(1, self.splits * self.vector / 32)
            + self.shared * self.weights
        )
        exchanged = warps * self.rows * self.outputs
        one = (
            products * (0.83 + 2.3 / self.outputs)
            + 0.83 * reads
            + 1.1 * exchanged
            + 47 * busiest * self.values
            + 6 * warps
            + 130
        )
        if busiest == 1:
            one += 0.25 * products  # nothing else to do while a warp waits
        if self.blocks > 1:
            travel = 120 + (75 if self.passes > 1 else 215) * math.log2(self.blocks)
            # a pass that is completed amid the products of the next one travels there, too
            hidden = max(0, one - 2000) / 4 if self.deferred else 0
            one += max(0, travel - hidden)
        waves = networks * self.clusters(B) / chip.resident(self.blocks)
        # what follows waits for the last clusters, unless it is that of another network
        waves = max(1, waves) if apart else math.ceil(waves)
        return waves * self.passes * one


@functools.cache
def best_plan(
    H: int,
    B: int,
    chip: Chip,
    is_complex: bool = False,
    networks: int = 1,
    apart: bool = False,
) -> Plan | None:
    """The plan of least cost for B rows a network; None if the weights do not fit on the chip.

    Clusters of 16 blocks are only for weights that do not fit into fewer, since not all devices
    run them; and for complex weights that just fit into fewer, but would leave little room.

    Arguments:
        H: The number of units.
        B: The rows of a network.
        chip: The chip.
        is_complex: Whether the weights are those of H/2 complex units.
        networks: How many networks run at the same time.
        apart: Whether they have a launch each, and none of them waits for another.

    Example:
        >>> best_plan(170, 50, Chip(132, 232448, 16)).blocks
        1
        >>> best_plan(1024, 50, Chip(132, 232448, 16)).blocks
        16
        >>> best_plan(1024, 50, Chip(132, 232448, 16), is_complex=True).blocks
        8

        Networks that run at the same time have more rows than there are multiprocessors:

        >>> best_plan(170, 50, Chip(132, 232448, 16), networks=4).rows
        2
    """
    rows = networks * B
    found: Plan | None = None
    for clusters in ((1, 2, 4, 8), (16,)):
        if found is not None and not is_complex:
            break
        plans = [
            plan
            for blocks in clusters
            if blocks <= chip.cluster
            for plan in _plans(
                H,
                blocks,
                min(MOST_NEEDED, -(-rows // chip.resident(blocks))),
                chip.memory,
                is_complex,
            )
        ]
        if plans:
            costs = [plan.cost(B, chip, networks, apart) for plan in plans]
            least = min(costs)
            if found is None or least < 0.8 * found.cost(B, chip, networks, apart):
                found = plans[costs.index(least)]
    return found


@functools.cache
def _plans(H: int, blocks: int, needed: int, memory: int, is_complex: bool) -> tuple[Plan, ...]:
    """All plans whose clusters take the needed number of rows, as far as memory allows.

    Many sizes of the batch have the same.
    """
    plans = []
    for rows, outputs, splits, vector in itertools.product(
        (1, 2, 4), (4, 8), (4, 8, 16, 32), (2, 4)
    ):
        if rows > 1 and rows // 2 >= needed:
            continue
        most = min(8, -(-needed // rows)) if blocks > 1 else 1
        for passes in range(1, most + 1):
            empty = Plan(H, blocks, rows, passes, outputs, splits, vector, 0, is_complex)
            if empty.deferred and vector < 4:
                continue  # leaves too little between a read and its use
            plan = _filled(empty, memory)
            if plan is not None:
                plans.append(plan)
    return tuple(plans)


def _filled(plan: Plan, memory: int) -> Plan | None:
    """The plan with as many weights in registers as there is room for, if the rest fits too."""
    threads, chunks, weights = plan.threads, plan.chunks, plan.weights
    if threads > 1024:
        return None
    # two passes that are written out need fewer others; with 12 of 13 chunks the compiler spills
    written = plan.deferred and plan.passes == 2 and chunks > 13
    room = registers(threads) - plan.rows * plan.outputs - 4 * plan.values
    # how much of it must be in registers, if none is yet
    missing = plan.memory(streams=2) - (memory - RESERVED)
    for spare in (40 if written else 44, 34, 24):
        kept = min(chunks, max(0, (room - spare) // weights))
        if missing <= 4 * kept * weights * threads:
            return replace(plan, kept=kept)
    return None
