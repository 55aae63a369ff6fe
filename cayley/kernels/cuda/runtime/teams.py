"""How the weights of a recurrence are laid out over teams of several blocks."""

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from cayley.kernels.cuda.runtime.blocks import Options, option_lines
from cayley.kernels.cuda.runtime.chip import RESERVED, Chip, registers
from cayley.kernels.cuda.runtime.nvrtc import constants

__all__ = ["GateProduct", "Kind", "Team", "best_team"]

LANES = 32  # lanes of a warp, and the most units that a block can have
BATCH = 16  # numbers that a thread waits for at a time


class GateProduct(NamedTuple):
    """A product of a step, as a block sees it.

    Attributes:
        gates: The number of gates of every unit of the block; 1 if there are none.
        reduced: Whether the gates are its inputs, and its outputs are sums over all blocks for
            every unit; otherwise they are its outputs, and all units are its inputs.
    """

    gates: int
    reduced: bool


class Kind(NamedTuple):
    """What a team has to compute at every step.

    Attributes:
        products: The products with matrices.
        totals: How often its blocks also add up numbers of their own.
        extra: Floats of shared memory for anything else, for each row.
        spare: Registers that are better left for anything but weights.
        together: The number of neighbouring units that must be in the same block.
        is_complex: Whether the weights are complex, so that a lane holds their parts once, as
            ``src/product.cuh`` describes.
    """

    products: tuple[GateProduct, ...]
    totals: int
    extra: int
    spare: int
    together: int = 1
    is_complex: bool = False


class Share(NamedTuple):
    """How the threads of a block share a product, as ``src/product.cuh`` describes it.

    Attributes:
        outputs: The outputs that a group of lanes computes.
        splits: The lanes of a group.
        vector: The inputs that a lane reads at a time.
        slices: The parts of the inputs, each with groups of its own.
        chunks: How often a lane reads inputs.
        shared: How often its weights are in shared memory, not in its registers.
        weights: The number of these each time.
    """

    outputs: int
    splits: int
    vector: int
    slices: int
    chunks: int
    shared: int
    weights: int


@dataclass(frozen=True)
class Team:
    """Products of a recurrence of H units, as ``src/team.cuh`` describes.

    Attributes:
        H: The number of units.
        kind: What there is to compute.
        blocks: The number of blocks of a team.
        rows: The rows of the batch that are computed together.
        threads: The number of threads of a block.
        outputs: The outputs that a group of lanes computes.
        spare: Registers that are left for anything but weights.
        widest: The inputs that a lane reads at a time, at most.
    """

    H: int
    kind: Kind
    blocks: int
    rows: int
    threads: int
    outputs: int
    spare: int
    widest: int = 4

    @property
    def units(self) -> int:
        """Units of a block."""
        return _units(self.H, self.blocks, self.kind.together)

    @property
    def shares(self) -> tuple[Share, ...]:
        """The fastest share of each product; the first products get registers first.

        There are fewer shares than products if there are too few threads for one.
        """
        return tuple(share for share, _ in self._fastest)

    @functools.cached_property
    def _fastest(self) -> tuple[tuple[Share, float], ...]:
        """The shares, each with its approximate cycles."""
        room = registers(self.threads) - self.spare - self.rows * self.outputs
        found = []
        for product in self.kind.products:
            fastest = self._share(product, room)
            if fastest is not None:
                share, _ = fastest
                room -= (share.chunks - share.shared) * share.weights
                found.append(fastest)
        return tuple(found)

    def _sizes(self, product: GateProduct) -> tuple[int, int]:
        """Inputs and outputs of a product."""
        sizes = self.H, product.gates * self.units
        return sizes[::-1] if product.reduced else sizes

    def _share(self, product: GateProduct, room: int) -> tuple[Share, float] | None:
        """The fastest share of a product with so many registers for weights, and its cycles."""
        inputs, outputs = self._sizes(product)
        groups = -(-outputs // self.outputs)
        parts = 2 if self.kind.is_complex else 1
        vectors = [vector for vector in (4, 2, 1) if parts <= vector <= self.widest]
        warps, room = self.threads // 32, max(0, room)
        busiest = -(-warps // 4)
        exchanged = 1.5 * warps * self.rows * self.outputs
        sums = self._turns * self.rows if product.reduced else product.gates
        found, least = None, math.inf
        # all in one loop, without calls: the search for a layout spends its time here
        for splits in (2, 4, 8, 16, 32):
            most = self.threads // (groups * splits)
            if most == 0:
                break
            for vector in vectors:
                lane = splits * vector
                slices = min(most, -(-inputs // lane))
                chunks = -(-inputs // (slices * lane))
                weights = self.outputs * vector // parts
                shared = chunks - min(chunks, room // weights)
                reads, held = self.rows * chunks, shared * weights
                issued = busiest * (reads * (1 + self.outputs * vector) + held // vector)
                read = warps * (0.5 * reads * vector + held)
                cycles = 0.8 * issued + read + exchanged + 20 * (slices * sums)
                if cycles < least:
                    found = (self.outputs, splits, vector, slices, chunks, shared, weights)
                    least = cycles
        return None if found is None else (Share(*found), least)

    @property
    def memory(self) -> int:
        """Bytes of shared memory."""
        return 4 * (self._floats + self.rows * self.kind.extra)

    @property
    def _floats(self) -> int:
        """Floats of the products in shared memory."""
        floats = sums = 0
        for share, product in zip(self.shares, self.kind.products, strict=True):
            _, outputs = self._sizes(product)
            width = share.chunks * share.splits * share.vector
            floats += share.slices * -(-self.rows * width // 4) * 4
            floats += share.shared * share.weights * self.threads
            floats += product.reduced * self.threads
            sums = max(sums, -(-share.slices * self.rows * outputs // 4) * 4)
        return floats + sums

    @property
    def words(self) -> int:
        """Numbers in global memory that a team needs for exchanges, each stored twice."""
        reduced = {product.reduced for product in self.kind.products}
        words = self.rows * self.H * ((False in reduced) + self.blocks * (True in reduced))
        return 2 * (words + 2 * self.rows * self.blocks * (self.kind.totals > 0))

    def teams(self, B: int, chip: Chip) -> int:
        """How many teams compute B rows."""
        return min(chip.processors // self.blocks, -(-B // self.rows))

    @property
    def _turns(self) -> int:
        """The number of turns in which the threads of a block handle all units."""
        return -(-self.H // self.threads)

    def _waiting(self, product: GateProduct) -> float:
        """Approximate cycles until a block has what it needs from the others."""
        if product.reduced:
            words = -(-self.blocks // (self.threads // (LANES * self.rows)))
            return 1500 + 90 * words + 100 * self._turns * self.rows
        at_once = max(1, min(BATCH // self.rows, self._turns))
        return 1500 * -(-self._turns // at_once) + 85 * self._turns * self.rows

    @functools.cached_property
    def _step(self) -> float:
        """Approximate cycles of a step of the rows of a team."""
        step = sum(cycles for _, cycles in self._fastest)
        step += (3000 + 12 * self.blocks) * self.kind.totals
        step += sum(map(self._waiting, self.kind.products))
        return step * (1.1 if self.spare < self.kind.spare else 1)  # some registers, to memory

    def cost(self, B: int, chip: Chip) -> float:
        """Approximate cycles of a step of B rows, fitted to 400 timings on an H200."""
        return -(-B // (self.rows * self.teams(B, chip))) * self._step

    def sizes(self, options: Options) -> str:
        """The header ``sizes.cuh``."""
        tables = "".join(
            f"constexpr int {name.upper()}[] = "
            f"{{{', '.join(str(getattr(share, name)) for share in self.shares)}}};\n"
            for name in ("outputs", "splits", "vector", "slices", "shared")
        )
        numbers = {name.upper(): getattr(self, name) for name in ("blocks", "rows", "threads")}
        return (
            constants(H=self.H, UNITS=self.units, BATCH=BATCH, MEMORY=self._floats, **numbers)
            + tables
            + option_lines(options)
        )


@functools.cache
def best_team(H: int, B: int, kind: Kind, chip: Chip) -> Team | None:
    """The layout of least cost for B rows; None if the weights do not fit or no team can run.

    Blocks of 512 threads, which have few registers, are only for weights that fit nowhere else.

    Example:
        >>> H200, kind = Chip(132, 232448, 16), Kind((GateProduct(4, False),), 0, 0, 64)
        >>> team = best_team(512, 50, kind, H200)
        >>> team.blocks * team.units >= 512, team.teams(50, H200) * team.rows >= 50
        (True, True)
    """
    for threads in ((128, 256, 384), (512,)) if chip.together else ():
        if teams := list(_teams(H, B, kind, chip, threads)):
            return min(teams, key=lambda team: team.cost(B, chip))
    return None


def _units(H: int, blocks: int, together: int) -> int:
    """The number of units of each block."""
    return -(-H // (blocks * together)) * together


def _teams(H: int, B: int, kind: Kind, chip: Chip, numbers: tuple[int, ...]) -> Iterator[Team]:
    """All layouts that fit, with one of these numbers of threads."""
    for blocks in range(-(-H // LANES), min(H, chip.processors) + 1):
        units = _units(H, blocks, kind.together)
        if units > LANES or -(-H // units) < blocks:
            continue  # some block would have too much or nothing to do
        needed = -(-B // (chip.processors // blocks))
        for rows in (1, 2, 4, 8):
            if rows // 2 < needed:
                yield from _teams_of(H, kind, blocks, rows, numbers, chip.memory)


@functools.cache
def _teams_of(
    H: int, kind: Kind, blocks: int, rows: int, numbers: tuple[int, ...], memory: int
) -> tuple[Team, ...]:
    """The layouts of so many blocks and rows that fit; other sizes of the batch have them too."""
    teams = []
    for threads, outputs, spare in itertools.product(
        numbers, (4, 8), (kind.spare, kind.spare - 24)
    ):
        if threads < LANES * rows:
            continue
        for widest in (4, 2, 1):
            team = Team(H, kind, blocks, rows, threads, outputs, spare, widest)
            if len(team._fastest) < len(kind.products):
                break  # there are too few threads
            if team.memory <= memory - RESERVED:
                teams.append(team)
                break
    return tuple(teams)
