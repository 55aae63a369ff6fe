"""How an LSTM whose statistics join the rows of the batch is laid out over blocks."""

import functools
import math
from dataclasses import dataclass

from cayley.kernels.cuda.runtime.blocks import Options, option_lines
from cayley.kernels.cuda.runtime.chip import RESERVED, Chip
from cayley.kernels.cuda.runtime.nvrtc import constants

__all__ = ["BatchLayout", "best_batch_layout"]

LANES, GATES = 32, 4
FEATURES = 2 * GATES + 1  # of a unit that are normalised
SPLITS = 8  # lanes that share a row of a product
MOST_PARTS = 4  # warps of a unit: each reads the sums of all
MOST_ITEMS = 8  # rows of a lane


@dataclass(frozen=True)
class BatchLayout:
    """That of H units over blocks that have all rows of theirs; see ``src/lstm_batch.cuh``.

    Attributes:
        H: The number of units.
        units: Of a block: a power of 2.
        threads: Of a block.
        rows: Of the batch, for which a lane multiplies at a time: a power of 2.
        parts: The warps of a unit.
        items: The rows of a lane of them.
    """

    H: int
    units: int
    threads: int
    rows: int
    parts: int
    items: int

    @property
    def blocks(self) -> int:
        """All of them."""
        return -(-self.H // self.units)

    @property
    def vector(self) -> int:
        """The states that a lane reads at a time: rows of states lie one after another."""
        return math.gcd(self.H, 4)

    def memory(self, K: int) -> int:
        """Bytes of shared memory for windows of K steps, enough for both directions."""
        forward = self._product(self.H, GATES * self.units, self.vector)
        backward = self._product(GATES * self.H, self.units, 4)
        sums = 2 * (self.threads // LANES) * 3 * GATES
        windows = self.units * FEATURES * (3 * (K - 1) + 4)
        parameters = 3 * FEATURES * self.units
        return 4 * (max(forward, backward) + sums + parameters + windows)

    def _product(self, inputs: int, outputs: int, vector: int) -> int:
        """Floats of a product: its weights, and what it gives for all rows."""
        step = SPLITS * vector
        return outputs * (-(-inputs // step) * step + LANES * self.parts * self.items + 4)

    def sizes(self, options: Options) -> str:
        """The header ``sizes.cuh``."""
        names = ("units", "threads", "rows", "parts", "items", "vector")
        numbers = {name.upper(): getattr(self, name) for name in names}
        return constants(H=self.H, SPLITS=SPLITS, **numbers) + option_lines(options)


@functools.cache
def best_batch_layout(H: int, B: int, K: int, chip: Chip) -> BatchLayout | None:
    """The layout with the fewest units a block, None where there is no room.

    Arguments:
        H: The number of units.
        B: The number of rows.
        K: The steps of a window.
        chip: The device.

    Example:
        >>> H200 = Chip(132, 232448, 16)
        >>> best_batch_layout(60, 128, 1, H200)
        BatchLayout(H=60, units=1, threads=512, rows=2, parts=4, items=1)
        >>> best_batch_layout(5000, 128, 1, H200) is None
        True
    """
    threads = 512
    for units in (1, 2, 4, 8) if chip.together else ():
        parts = 1
        while parts < MOST_PARTS and LANES * parts < B and 2 * parts * units * LANES <= threads:
            parts *= 2
        rows = 1 if threads // SPLITS >= B else 2
        items = -(-B // (LANES * parts))
        layout = BatchLayout(H, units, threads, rows, parts, items)
        fits = layout.memory(K) <= chip.memory - RESERVED
        if layout.blocks <= chip.processors and items <= MOST_ITEMS and fits:
            return layout
    return None
