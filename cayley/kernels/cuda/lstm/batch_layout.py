"""How an LSTM whose statistics join the rows of the batch is laid out over blocks."""

import functools
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from cayley.kernels.cuda.runtime.blocks import Options, option_lines
from cayley.kernels.cuda.runtime.chip import RESERVED, Chip, registers
from cayley.kernels.cuda.runtime.nvrtc import constants

__all__ = ["FEATURES", "BatchLayout", "Share", "best_batch_layout"]

LANES, GATES = 32, 4
FEATURES = 2 * GATES + 1  # normalised features of a unit
THREADS = 512
KEPT = 32  # the most weights that a lane has in registers
KEPT_APART = 64  # where it has nothing else to do
SEEN_APART = 48  # the most numbers that it then reads at a time, as in src/lstm_batch.cuh
MOST_SUMS = 32  # the most sums of a lane
MOST_PARTS = 4  # the most warps of a unit, since each reads the sums of all
MOST_ITEMS = 8  # the most rows of a lane
OTHERS = 16  # registers of a lane for anything else
OF_ITEMS = 20  # more of them where a lane has several rows of a unit
MOST_MEMBERS = 256  # the most other threads beside those of a product that has its own
MOST_TEAM = 8  # the most blocks that share a product
MANY_ROWS = 64  # with more, threads of its own pay forward too, and backward the largest team

# cycles, for products with warps of their own, as fits what was measured on an H200
TRIP = 170  # to memory, for all that is read at a time
LOOKS = 12  # times the square of the vectors that a lane looks for at a time
BYTES = 90  # that a multiprocessor reads in one of them
WAVES = 6  # to read a vector of each lane from shared memory
SUMS = 1  # times the square of the sums of a lane
LAST_LEVEL = 200  # for sums over all lanes of a warp
MARGIN = 50  # less makes no difference


class Share(NamedTuple):
    """How the threads of a block share a product.

    Attributes:
        splits: The number of lanes that share a row; a power of 2.
        rows: The number of rows of the batch that a lane multiplies at a time; a power of 2.
        workers: The number of threads that do nothing else; 0 if there are none, and all threads
            multiply.
        team: The number of blocks, a cluster, that share the rows of their products.
    """

    splits: int
    rows: int
    workers: int = 0
    team: int = 1


class Factors(NamedTuple):
    """The size of a product: from inputs, of which ``width`` are read at a time, to outputs."""

    inputs: int
    outputs: int
    width: int


@dataclass(frozen=True)
class BatchLayout:
    """The layout of H units over blocks, each with all rows of its units.

    See ``src/lstm_batch.cuh``.

    Attributes:
        H: The number of units.
        units: The number of units of a block, a power of 2.
        threads: The number of threads of a block whose product has no threads of its own.
        parts: The number of warps of a unit.
        items: The number of rows of a lane in these warps.
        forward: How threads share the product with the states.
        backward: How threads share the product with the gradients of the gates.
    """

    H: int
    units: int
    threads: int
    parts: int
    items: int
    forward: Share
    backward: Share

    @property
    def members(self) -> int:
        """The number of threads of a block that have rows of a unit."""
        return LANES * self.parts * self.units

    @property
    def of_states(self) -> Factors:
        """The product with the states, whose rows are contiguous."""
        return Factors(self.H, GATES * self.units, math.gcd(self.H, 4))

    @property
    def of_gates(self) -> Factors:
        """The product with the gradients of the gates."""
        return Factors(GATES * self.H, self.units, 4)

    def blocks(self, share: Share) -> int:
        """The number of blocks, of which with a team the last may have nothing to do."""
        return -(-self.H // (self.units * share.team)) * share.team

    def block(self, share: Share) -> int:
        """The number of threads of a block."""
        return self.members + share.workers if share.workers else self.threads

    def memory(self, K: int) -> int:
        """Bytes of shared memory for windows of K steps, enough for both directions."""
        products = (self.forward, self.of_states), (self.backward, self.of_gates)
        sums = 2 * (max(self.block(share) for share, _ in products) // LANES) * 3 * GATES
        parameters = 3 * FEATURES * self.units
        windows = self.units * FEATURES * (3 * (K - 1) + 4)
        return 4 * (max(self._product(*each) for each in products) + sums + parameters + windows)

    def _product(self, share: Share, factors: Factors) -> int:
        """The number of floats of a product: its weights, and its results for all rows."""
        weights = share.team * factors.outputs * _chunks(share, factors)
        results = factors.outputs * (LANES * self.parts * self.items + 4)
        results *= 2 if share.workers else 1
        barriers = 4 if share.team > 1 else 0
        return weights * share.splits * factors.width + results + barriers

    def sizes(self, share: Share, options: Options) -> str:
        """The header ``sizes.cuh`` of one direction."""
        numbers = {name.upper(): getattr(self, name) for name in ("units", "parts", "items")}
        numbers |= {"SPLITS": share.splits, "ROWS": share.rows, "TEAM": share.team}
        numbers |= {"THREADS": self.block(share), "VECTOR": self.of_states.width}
        apart = ("bool APART", str(share.workers > 0).lower())
        return constants(H=self.H, **numbers) + option_lines((apart, *options))


@functools.cache
def best_batch_layout(H: int, B: int, K: int, chip: Chip) -> BatchLayout | None:
    """The layout with the fewest units per block; None if there is no room.

    Arguments:
        H: The number of units.
        B: The number of rows.
        K: The steps of a window.
        chip: The device.

    Example:
        >>> layout = best_batch_layout(60, 128, 1, Chip(132, 232448, 16))
        >>> layout.parts, layout.items
        (4, 1)
        >>> layout.forward
        Share(splits=8, rows=2, workers=512, team=1)
        >>> layout.backward
        Share(splits=32, rows=1, workers=384, team=8)
    """
    for units in (1, 2, 4, 8) if chip.together else ():
        parts = 1
        while parts < MOST_PARTS and LANES * parts < B and 2 * parts * units * LANES <= THREADS:
            parts *= 2
        items = -(-B // (LANES * parts))
        shares = _forward_share(H, B, units), Share(LANES, _rows(B, LANES, units, THREADS))
        plain = BatchLayout(H, units, THREADS, parts, items, *shares)
        if -(-H // units) > chip.processors or items > MOST_ITEMS:
            continue
        for layout in (_apart(plain, B, chip), plain):
            if layout.memory(K) <= chip.memory - RESERVED:
                return layout
    return None


def _apart(layout: BatchLayout, B: int, chip: Chip) -> BatchLayout:
    """The layout with products that have warps of their own, where that pays."""
    if chip.cluster == 1 or layout.members > MOST_MEMBERS:
        return layout
    blocks = -(-layout.H // layout.units)
    teams = [
        team
        for team in (1, 2, 4, MOST_TEAM)
        if team == 1 or (team <= chip.cluster and -(-blocks // team) <= chip.resident(team))
        if team < MOST_TEAM or B > MANY_ROWS
    ]
    # the other threads need registers for their rows, and more of them on the way back
    few = (THREADS - layout.members, 256) if layout.items == 1 else (256,)
    many = (512, *few) if layout.items == 1 else few
    of_gates, of_states = layout.of_gates, layout.of_states
    back = _cheapest(layout, of_gates, B, _shares(teams, few, (16, 32), (1, 2, 4)))
    layout = replace(layout, backward=back or layout.backward)
    if B > MANY_ROWS:
        # one row at a time does not pay with so few lanes for it
        own = _cheapest(layout, of_states, B, _shares((1,), many, (8, 16, 32), (2, 4)))
        layout = replace(layout, forward=own or layout.forward)
    return layout


def _shares(
    teams: Iterable[int], workers: Iterable[int], splits: Iterable[int], rows: Iterable[int]
) -> Iterator[Share]:
    for team, threads, lanes, at_a_time in itertools.product(teams, workers, splits, rows):
        yield Share(lanes, at_a_time, threads, team)


def _cheapest(
    layout: BatchLayout, factors: Factors, B: int, shares: Iterable[Share]
) -> Share | None:
    """The first share of about the least cost; None if registers suffice for none."""
    possible = (share for share in shares if _has_room(layout, share, factors))
    return min(possible, key=lambda share: round(_cost(share, factors, B) / MARGIN), default=None)


def _has_room(layout: BatchLayout, share: Share, factors: Factors) -> bool:
    """Whether the registers of a lane hold its sums, what it reads, and weights that it keeps."""
    seen = share.rows * factors.width * min(_chunks(share, factors), _ahead(share, factors))
    sums = share.rows * factors.outputs * share.team
    own = seen + sums + _weights(share, factors) + OTHERS + (OF_ITEMS if layout.items > 1 else 0)
    return sums <= MOST_SUMS and own <= registers(layout.block(share))


def _weights(share: Share, factors: Factors) -> int:
    """The number of weights that a lane keeps in registers; 0 if they are in shared memory."""
    chunks = _chunks(share, factors)
    weights = chunks * factors.outputs * share.team * factors.width
    return weights if chunks <= _ahead(share, factors) and weights <= KEPT_APART else 0


def _ahead(share: Share, factors: Factors) -> int:
    """The most vectors of each row that a lane reads at a time."""
    return max(1, SEEN_APART // (share.rows * factors.width))


def _cost(share: Share, factors: Factors, B: int) -> float:
    """About how many cycles a product of B rows takes, apart from its multiplications.

    These are the same for all shares. What a lane reads at a time costs a trip, and more the more
    it is: while any of it is missing, a lane looks at all of it.
    """
    lanes, rows, workers, team = share
    warps, outputs, chunks = workers // LANES, factors.outputs * team, _chunks(share, factors)
    own = -(-B // team)
    turns = -(-own // (workers // lanes * rows))
    trips = turns * -(-chunks // _ahead(share, factors))
    seen = rows * min(chunks, _ahead(share, factors))
    kept = _weights(share, factors) > 0
    return (
        own * factors.inputs * 4 / BYTES
        + trips * (TRIP + LOOKS * seen**2)
        + (0 if kept else WAVES * warps * turns * chunks * outputs)
        + SUMS * turns * (rows * outputs) ** 2
        + (LAST_LEVEL if lanes == LANES else 0)
    )


def _chunks(share: Share, factors: Factors) -> int:
    """The number of vectors of a lane."""
    return -(-factors.inputs // (share.splits * factors.width))


def _forward_share(H: int, B: int, units: int) -> Share:
    """The fewest lanes per row whose registers hold the weights, since sums over lanes are slow."""
    outputs, vector, splits = GATES * units, math.gcd(H, 4), 8
    while splits < LANES and -(-H // (splits * vector)) * vector * outputs > KEPT:
        splits *= 2
    return Share(splits, _rows(B, splits, outputs, THREADS))


def _rows(B: int, splits: int, outputs: int, threads: int) -> int:
    """The rows of a lane at a time: enough for the whole batch at once, but at most four."""
    rows = 1
    while rows < 4 and threads // splits * rows < B and 2 * rows * outputs <= MOST_SUMS:
        rows *= 2
    return rows
