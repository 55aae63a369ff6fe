"""Inverses (I + A)⁻¹ by all multiprocessors of a GPU, each with a part of the matrix."""

import functools
import itertools
from typing import NamedTuple

import torch
from torch import Tensor

from cayley.kernels.cuda.runtime.chip import RESERVED, Chip, chip, no_room
from cayley.kernels.cuda.runtime.nvrtc import Kernel, constants, on, tensor_refusal
from cayley.kernels.memory import readable

__all__ = ["Tiling", "refusal", "resolvent", "tiling"]

# as in src/resolvent.cu
PIVOTS, THREADS = 32, 256
ENTRIES = PIVOTS * PIVOTS  # of a square
MOST_SQUARES = 16  # of a tile: its numbers are in registers


class Tiling(NamedTuple):
    """How a matrix is shared by blocks, in squares of ``PIVOTS`` rows and columns.

    Attributes:
        stripes: The squares beside one another in the matrix.
        height: The squares above one another in a tile.
        width: The squares beside one another in a tile.
    """

    stripes: int
    height: int
    width: int

    @property
    def rows(self) -> int:
        """Tiles above one another."""
        return -(-self.stripes // self.height)

    @property
    def columns(self) -> int:
        """Tiles beside one another."""
        return -(-self.stripes // self.width)

    @property
    def blocks(self) -> int:
        """One for each tile, and one for the pivots."""
        return self.rows * self.columns + 1

    @property
    def memory(self) -> int:
        """Bytes of shared memory; those who invert squares need four times the room of one."""
        return 8 * ENTRIES * max(4, 1 + 2 * self.width + self.height)

    @property
    def room(self) -> int:
        """Numbers in global memory that blocks tell each other."""
        sides = self.rows * self.height + self.columns * self.width
        return self.stripes * ENTRIES * (sides + 2)


@functools.cache
def tiling(n: int, chip: Chip) -> Tiling | None:
    """The smallest tiles of an (n, n) matrix that run at the same time; None if there are none.

    Example:
        >>> H200 = Chip(132, 232448, 16)
        >>> tiling(1024, H200), tiling(1024, H200).blocks
        (Tiling(stripes=32, height=4, width=2), 129)
        >>> tiling(2000, H200) is None
        True
    """
    stripes = -(-n // PIVOTS)
    found = []
    for height, width in itertools.product(range(1, MOST_SQUARES + 1), repeat=2):
        tiles = Tiling(stripes, height, width)
        # products read both factors; those of wide tiles are divided by pivots in every block
        cost = (height * width, height + width, width)
        fits = height * width <= MOST_SQUARES and tiles.memory <= chip.memory - RESERVED
        if fits and tiles.blocks <= chip.processors:
            found.append((cost, tiles))
    return min(found)[1] if n > 0 and chip.together and found else None


def refusal(n: int, A: Tensor) -> str | None:
    """Why this kernel cannot invert an (n, n) matrix I + A; None if it can.

    Arguments:
        n: The size of the matrix.
        A: It, or another tensor of its type and device.
    """
    if reason := tensor_refusal(A):
        return reason
    if tiling(n, chip(A.device.index)) is None:
        return no_room(f"the numbers of a {n} × {n} matrix", A.device)
    return None


def resolvent(A: Tensor) -> Tensor:
    """The inverse :math:`X = (I + A)^{-1}`, computed in double precision.

    Arguments:
        A: A skew matrix, (n, n).

    Returns:
        X, (n, n).
    """
    n, device = len(A), A.device.index
    tiles = tiling(n, chip(device))
    if tiles is None:
        raise NotImplementedError(f"expected a size that refusal() accepts, got {n}")
    X = A.new_empty(n, n)
    room = A.new_empty(tiles.room, dtype=torch.float64)
    told = A.new_zeros(tiles.blocks, dtype=torch.int32)
    _kernel(device, tiles)(1, readable(A), X, room, told, n)
    return X


@functools.cache
def _kernel(device: int, tiles: Tiling) -> Kernel:
    sizes = constants(
        STRIPES=tiles.stripes,
        HEIGHT=tiles.height,
        WIDTH=tiles.width,
        ROWS=tiles.rows,
        COLUMNS=tiles.columns,
    )
    with on(device):
        return Kernel("resolvent", sizes, THREADS, tiles.blocks, tiles.memory, together=True)
