"""How an LSTM whose statistics join the rows of the batch is laid out over blocks."""

import functools
import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from cayley.kernels.cuda.runtime.blocks import Options, option_lines
from cayley.kernels.cuda.runtime.chip import RESERVED, Chip
from cayley.kernels.cuda.runtime.nvrtc import constants

__all__ = ["BatchLayout", "Share", "best_batch_layout"]

LANES, GATES = 32, 4
FEATURES = 2 * GATES + 1  # normalised features of a unit
THREADS = 512
KEPT = 32  # the most weights that a lane has in registers
KEPT_APART = 64  # where it has nothing else to do
MOST_SUMS = 32  # the most sums of a lane
MOST_PARTS = 4  # the most warps of a unit, since each reads the sums of all
MOST_ITEMS = 8  # the most rows of a lane
WORKERS = 256  # threads of a product that has warps of its own
MOST_MEMBERS = 128  # the most other threads beside these
TEAMS = (4, 2)  # blocks that share a product
TEAM_ROWS = 32  # fewer are not worth a team


class Share(NamedTuple):
    """How the threads of a block share a product.

    Attributes:
        splits: The number of lanes that share a row; a power of 2.
        rows: The number of rows of the batch that a lane multiplies at a time; a power of 2.
    """

    splits: int
    rows: int


@dataclass(frozen=True)
class BatchLayout:
    """The layout of H units over blocks, each with all rows of its units.

    See ``src/lstm_batch.cuh``.

    Attributes:
        H: The number of units.
        units: The number of units of a block, a power of 2.
        threads: The number of threads of a block.
        parts: The number of warps of a unit.
        items: The number of rows of a lane in these warps.
        forward: How threads share the product with the states.
        backward: How threads share the product with the gradients of the gates.
        apart: Whether these products have warps of their own.
        team: The number of blocks, a cluster, that share the product with the gradients.
    """

    H: int
    units: int
    threads: int
    parts: int
    items: int
    forward: Share
    backward: Share
    apart: bool = False
    team: int = 1

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return -(-self.H // self.units)

    @property
    def vector(self) -> int:
        """The number of states that a lane reads at a time; rows of states are contiguous."""
        return math.gcd(self.H, 4)

    def memory(self, K: int) -> int:
        """Bytes of shared memory for windows of K steps, enough for both directions."""
        forward = self._product(self.H, GATES * self.units, self.forward.splits * self.vector, 1)
        backward = self._product(GATES * self.H, self.units, self.backward.splits * 4, self.team)
        sums = 2 * (self.threads // LANES) * 3 * GATES
        parameters = 3 * FEATURES * self.units
        windows = self.units * FEATURES * (3 * (K - 1) + 4)
        return 4 * (max(forward, backward) + sums + parameters + windows)

    def _product(self, inputs: int, outputs: int, step: int, team: int) -> int:
        """The number of floats of a product: its weights, and its results for all rows."""
        weights = team * outputs * -(-inputs // step) * step
        results = outputs * (LANES * self.parts * self.items + 4)
        return weights + (2 * results + 4 if self.apart else results)

    def sizes(self, options: Options) -> str:
        """The header ``sizes.cuh``."""
        names = ("units", "threads", "parts", "items", "vector", "team")
        numbers = {name.upper(): getattr(self, name) for name in names}
        tables = "".join(
            f"constexpr int {name.upper()}[] = "
            f"{{{getattr(self.forward, name)}, {getattr(self.backward, name)}}};\n"
            for name in Share._fields
        )
        apart = ("bool APART", str(self.apart).lower())
        return constants(H=self.H, **numbers) + tables + option_lines((apart, *options))


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
        >>> layout.blocks, layout.parts, layout.items, layout.threads, layout.team
        (60, 4, 1, 384, 4)
    """
    for units in (1, 2, 4, 8) if chip.together else ():
        parts = 1
        while parts < MOST_PARTS and LANES * parts < B and 2 * parts * units * LANES <= THREADS:
            parts *= 2
        items = -(-B // (LANES * parts))
        shares = _forward_share(H, B, units, THREADS), Share(32, _rows(B, 32, units, THREADS))
        layout = BatchLayout(H, units, THREADS, parts, items, *shares)
        if chip.cluster > 1 and items == 1 and LANES * parts * units <= MOST_MEMBERS:
            layout = _apart(layout, B, chip)
        fits = layout.memory(K) <= chip.memory - RESERVED
        if layout.blocks <= chip.processors and items <= MOST_ITEMS and fits:
            return layout
    return None


def _apart(layout: BatchLayout, B: int, chip: Chip) -> BatchLayout:
    """The layout with warps that only multiply, and with a team if that has room."""
    H, units = layout.H, layout.units

    def kept(team: int, splits: int) -> int:
        return -(-GATES * H // (4 * splits)) * 4 * units * team

    teams = [
        team
        for team in (TEAMS if B > TEAM_ROWS else ())
        if team <= chip.cluster
        and -(-layout.blocks // team) <= chip.resident(team)
        and kept(team, LANES) <= KEPT_APART
    ]
    team = max(teams, default=1)
    splits = 16 if kept(team, 16) <= KEPT_APART else LANES
    return replace(
        layout,
        threads=LANES * layout.parts * units + WORKERS,
        forward=_forward_share(H, B, units, WORKERS, 4, KEPT_APART),
        backward=Share(splits, _rows(-(-B // team), splits, team * units, WORKERS)),
        apart=True,
        team=team,
    )


def _forward_share(
    H: int, B: int, units: int, threads: int, splits: int = 8, most: int = KEPT
) -> Share:
    """The fewest lanes per row whose registers hold the weights, since sums over lanes are slow."""
    outputs, vector = GATES * units, math.gcd(H, 4)
    while splits < LANES and -(-H // (splits * vector)) * vector * outputs > most:
        splits *= 2
    return Share(splits, _rows(B, splits, outputs, threads))


def _rows(B: int, splits: int, outputs: int, threads: int) -> int:
    """The rows of a lane at a time: enough for the whole batch at once, but at most four."""
    rows = 1
    while rows < 4 and threads // splits * rows < B and 2 * rows * outputs <= MOST_SUMS:
        rows *= 2
    return rows
