"""How an LSTM whose statistics join the rows of the batch is laid out over blocks."""

import functools
import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from cayley.kernels.cuda.runtime.blocks import Options, option_lines
from cayley.kernels.cuda.runtime.chip import RESERVED, Chip
from cayley.kernels.cuda.runtime.nvrtc import constants

__all__ = ["FEATURES", "BatchLayout", "Share", "best_batch_layout"]

LANES, GATES = 32, 4
FEATURES = 2 * GATES + 1  # normalised features of a unit
THREADS = 512
QUARTERS = 4 * LANES  # a warp for each quarter of a multiprocessor
KEPT = 32  # the most weights that a lane has in registers
KEPT_IN_TEAM = 64  # where it has nothing else to do
MOST_SUMS = 32  # the most sums of a lane
MOST_ROWS = 4  # the most rows that a lane multiplies at a time
MOST_PARTS = 4  # the most warps of a unit, since each reads the sums of all
MOST_ITEMS = 8  # the most rows of a lane
MOST_MEMBERS = 256  # the most threads that have rows, beside those of the products of a team
MANY_ROWS = 64  # with more, eight blocks share a product, and with less four


class Share(NamedTuple):
    """How the threads of a block share a product.

    Attributes:
        splits: The number of lanes that share a row; a power of 2.
        rows: The number of rows of the batch that a lane multiplies at a time; a power of 2.
        workers: In a team, the number of threads that do nothing else; else 0: all threads
            multiply.
        team: The number of blocks, a cluster, that share the rows of their products; 1 if none do.
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
        threads: The number of threads of a block that is in no team.
        parts: The number of warps of a unit.
        items: The number of rows of a lane in these warps.
        forward: How threads share the product with the states, without a team.
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
        results = 2 * results + 4 if share.team > 1 else results  # and barriers
        return weights * share.splits * factors.width + results

    def sizes(self, share: Share, options: Options) -> str:
        """The header ``sizes.cuh`` of one direction."""
        numbers = {name.upper(): getattr(self, name) for name in ("units", "parts", "items")}
        numbers |= {"SPLITS": share.splits, "ROWS": share.rows, "TEAM": share.team}
        numbers |= {"THREADS": self.block(share), "VECTOR": self.of_states.width}
        return constants(H=self.H, **numbers) + option_lines(options)


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
        Share(splits=8, rows=2, workers=0, team=1)
        >>> layout.backward
        Share(splits=32, rows=1, workers=256, team=8)
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
        team = _team_share(plain, B, chip)
        for layout in (plain if team is None else replace(plain, backward=team), plain):
            if layout.memory(K) <= chip.memory - RESERVED:
                return layout
    return None


def _team_share(layout: BatchLayout, B: int, chip: Chip) -> Share | None:
    """How teams share the product of the backward pass; None where there are none.

    Of all shares measured on an H200, this is the fastest at every size, or at most 3 % slower:

    - The larger the team, the less each block reads, and the best is the largest whose lanes keep
      their weights. One of eight needs all lanes of a warp for a row, whose sums take longer, so
      with few rows one of four is as large as pays.
    - Then a lane takes one row at a time: while any number is missing, it reads all again.
    - Where the weights of no team fit into registers, a lane takes many rows at a time, since it
      reads all weights again for those that follow.
    """
    lanes, largest = (LANES, 8) if B > MANY_ROWS else (LANES // 2, 4)
    blocks = -(-layout.H // layout.units)
    teams = [team for team in (8, 4, 2) if team <= min(largest, chip.cluster)]
    teams = [team for team in teams if -(-blocks // team) <= chip.resident(team)]
    if not teams or layout.members > MOST_MEMBERS:
        return None
    for team in teams:
        share = Share(lanes, 1, 0, team)
        if _weights(share, layout.of_gates) <= KEPT_IN_TEAM:
            return _with_workers(share, layout, B)
    team, lanes = min(4, teams[0]), LANES // 2
    rows = _rows(-(-B // team), lanes, layout.units * team, lanes)
    return _with_workers(Share(lanes, rows, 0, team), layout, B)


def _with_workers(share: Share, layout: BatchLayout, B: int) -> Share:
    """The share with no more threads than it takes to have all rows in as few turns."""
    most, own = _most_workers(layout), -(-B // share.team)
    turns = -(-own // (most // share.splits * share.rows))
    threads = -(-own // (turns * share.rows)) * share.splits
    return share._replace(workers=min(most, -(-threads // QUARTERS) * QUARTERS))


def _most_workers(layout: BatchLayout) -> int:
    """Those beside which the members of a block have registers for their rows."""
    return THREADS - layout.members if layout.items == 1 else THREADS // 2


def _weights(share: Share, factors: Factors) -> int:
    """The number of weights of a lane."""
    return _chunks(share, factors) * factors.outputs * share.team * factors.width


def _chunks(share: Share, factors: Factors) -> int:
    """The number of vectors of a lane."""
    return -(-factors.inputs // (share.splits * factors.width))


def _forward_share(H: int, B: int, units: int) -> Share:
    """The fewest lanes per row whose registers hold the weights, since sums over lanes are slow.

    There are no teams: a state is one number where gradients of gates are four, and at 60 units
    and 50 or 128 rows every way to have threads for products alone took at least a fifth more time.
    """
    outputs, vector, splits = GATES * units, math.gcd(H, 4), 8
    while splits < LANES and -(-H // (splits * vector)) * vector * outputs > KEPT:
        splits *= 2
    return Share(splits, _rows(B, splits, outputs, THREADS))


def _rows(B: int, splits: int, outputs: int, threads: int) -> int:
    """The rows of a lane at a time: enough for all of B at once, if they are not too many."""
    rows = 1
    while rows < MOST_ROWS and threads // splits * rows < B and 2 * rows * outputs <= MOST_SUMS:
        rows *= 2
    return rows
