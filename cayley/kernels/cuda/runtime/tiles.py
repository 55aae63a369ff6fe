"""Kernels of recurrences by tiles: many rows of the batch, with the weights in shared memory.

A team of blocks, as in :mod:`~cayley.kernels.cuda.runtime.teams`, has few rows, since every block
reads the states of all units of them. Here a block multiplies so many rows with its weights that
the products take longer than reading the states, as in a library's product of matrices; and all
steps are one launch. Results do not depend on any setting of torch.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cayley.kernels.cuda.runtime.blocks import Options, option_lines
from cayley.kernels.cuda.runtime.chip import Chip, chip
from cayley.kernels.cuda.runtime.nvrtc import Kernel, constants, on
from cayley.kernels.cuda.runtime.parts import Part

__all__ = ["TileKind", "Tiles", "run_tiles", "tile_microseconds", "tiles"]

ROWS, UNITS, THREADS = 64, 16, 256  # of a block
WARPS = THREADS // 32
DEPTH, STAGES = 4, 4  # the inputs of a stage, and the stages of a warp
MULTIPLICATIONS = 181e3  # of a block in a microsecond, on an H200


class TileKind(NamedTuple):
    """What a team of blocks computes by tiles at every step.

    Attributes:
        matrices: The number of matrices, (H, H) each.
        exchanged: How many numbers of a unit and row blocks tell each other at the same time.
        overhead: Microseconds of a step that are not products, on an H200.
        groups: The units of a block, in groups of 16.
        sets: How many sets of 64 rows a team computes in turn at every step.
    """

    matrices: int
    exchanged: int
    overhead: float
    groups: int = 1
    sets: int = 1


@dataclass(frozen=True)
class Tiles:
    """Products of a recurrence of H units, as ``src/tile.cuh`` describes.

    Attributes:
        H: The number of units.
        kind: What there is to compute.
    """

    H: int
    kind: TileKind

    @property
    def blocks(self) -> int:
        """The number of blocks of a team."""
        return -(-self.H // (UNITS * self.kind.groups))

    @property
    def inputs(self) -> int:
        """Inputs of a product, with the zeros at their end."""
        return -(-self.H // (WARPS * DEPTH)) * WARPS * DEPTH

    @property
    def memory(self) -> int:
        """Bytes of shared memory."""
        columns = self.kind.matrices * self.kind.groups * UNITS
        return 4 * (columns * self.inputs + WARPS * STAGES * DEPTH * ROWS)

    def teams(self, B: int, chip: Chip) -> int:
        """How many teams compute B rows."""
        return min(chip.processors // self.blocks, -(-B // (self.kind.sets * ROWS)))

    def sizes(self, options: Options) -> str:
        """The header ``sizes.cuh``."""
        numbers = {"H": self.H, "BLOCKS": self.blocks, "ROWS": ROWS, "UNITS": UNITS}
        numbers |= {"THREADS": THREADS, "DEPTH": DEPTH, "STAGES": STAGES}
        numbers |= {"GROUPS": self.kind.groups, "SETS": self.kind.sets}
        return constants(**numbers) + option_lines(options)


@functools.cache
def tiles(H: int, kind: TileKind, chip: Chip) -> Tiles | None:
    """The layout for H units; None if there is no room.

    Example:
        >>> H200, kind = Chip(132, 232448, 16), TileKind(matrices=3, exchanged=2, overhead=7.0)
        >>> tiles(1024, kind, H200).blocks, tiles(2000, kind, H200)
        (64, None)
    """
    layout = Tiles(H, kind)
    fits = layout.memory <= chip.memory and layout.blocks <= chip.processors
    return layout if chip.together and fits else None


def tile_microseconds(H: int, B: int, kind: TileKind, chip: Chip) -> float:
    """Approximate time of a step; infinite if there is no room.

    Fitted to 16 timings of NC-GRU on an NVIDIA H200, forward and backward, of 32 to 512 rows and
    256 to 1024 units: 15 are met within 10 %; 64 rows of 1024 units take 14 % longer, forward.

    Example:
        >>> H200, kind = Chip(132, 232448, 16), TileKind(3, 2, 7.0)
        >>> [round(tile_microseconds(1024, B, kind, H200)) for B in (1, 128, 512)]
        [24, 24, 98]
    """
    layout = tiles(H, kind, chip)
    if layout is None:
        return float("inf")
    rows = kind.sets * ROWS
    turns = -(-B // (rows * layout.teams(B, chip)))
    products = kind.matrices * kind.groups * UNITS * H * rows
    return turns * (kind.overhead + products / MULTIPLICATIONS)


def run_tiles(
    source: str,
    kind: TileKind,
    options: Options,
    h0: Tensor,
    arrays: Sequence[Tensor | Part | None],
    table: Tensor | None,
    *numbers: int,
) -> None:
    """Launch a kernel for all rows of h0, with the arguments of :func:`.team_kernels.run_teams`."""
    (B, H), device = h0.shape, h0.device.index
    layout = tiles(H, kind, chip(device))
    if layout is None:
        raise NotImplementedError(f"expected a size that has tiles, for {source}")
    teams = layout.teams(B, chip(device))
    sets = teams * kind.sets
    inputs = h0.new_zeros(sets * kind.exchanged * layout.inputs * ROWS)
    words = h0.new_zeros(sets * layout.blocks, dtype=torch.int32)
    _kernel(device, source, layout, options)(teams, *arrays, inputs, words, table, *numbers, teams)


@functools.cache
def _kernel(device: int, source: str, layout: Tiles, options: Options) -> Kernel:
    with on(device):
        sizes = layout.sizes(options)
        return Kernel(source, sizes, THREADS, layout.blocks, layout.memory, together=True)
