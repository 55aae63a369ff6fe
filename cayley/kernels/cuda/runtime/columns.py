"""The factors of a sum over rows of outer products, and the largest number of each column."""

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cayley.kernels.cuda.runtime.networks import arrays_of
from cayley.kernels.cuda.runtime.nvrtc import Kernel, constants, on

__all__ = ["ROWS", "SIDE", "THREADS", "Factors", "factors_of"]

THREADS = 256
SIDE = 128  # as in src/columns.cuh
ROWS = 256  # those of a block


class Factors(NamedTuple):
    r"""Those of :math:`\sum_k a_k b_k^\top`, as ``src/columns.cuh`` reads them.

    Attributes:
        arrays: a, b, and rows to put before b, or after it; as many at the other end are left out.
        shared: Which of them all networks share, as ``src/networks.cuh`` reads it.
        networks: The number of networks, if there may be several.
        rows: The number of rows, that of those to put before b, and 1 if they come after it.
        widths: The number of columns, of a and of b.
        aligned: Whether rows of both begin at multiples of four numbers.
    """

    arrays: list[Any]
    shared: int
    networks: tuple[int, ...]
    rows: tuple[int, int, int]
    widths: tuple[int, int]
    aligned: bool

    @property
    def G(self) -> int:
        """The number of networks."""
        return sum(self.networks) or 1

    @property
    def groups(self) -> int:
        """The number of blocks that the columns of a and b need."""
        return sum(-(-width // SIDE) for width in self.widths)

    def sizes(self, **others: int) -> str:
        """The header ``sizes.cuh`` of a kernel."""
        M, N = self.widths
        flags = {"ALIGNED": int(self.aligned), "SEVERAL": int(bool(self.networks))}
        return constants(M=M, N=N, THREADS=THREADS, **flags, **others)

    def largest(self) -> Tensor:
        """The bits of the largest modulus of each column, of a and then of b."""
        a, K = self.arrays[0], self.rows[0]
        found = a.new_zeros(*self.networks, sum(self.widths), dtype=torch.int32)
        launch = _largest(a.device.index, self.sizes(DEPTH=ROWS))
        blocks = self.groups * -(-K // ROWS)
        launch(blocks, *self.arrays, found, *self.rows, self.shared, networks=self.G)
        return found


def factors_of(a: Tensor, b: Tensor, first: Tensor | None, reverse: bool) -> Factors:
    """The factors (K, M) and (K, N), or those of several networks, (G, K, M) and (G, K, N)."""
    *networks, K, M = a.shape
    N, F = b.shape[-1], 0 if first is None else first.shape[-2]
    arrays, shared = arrays_of((a, b, first), bool(networks))
    starts = [array.data_ptr() for array in arrays if array is not None]
    aligned = M % 4 == N % 4 == 0 and all(start % 16 == 0 for start in starts)
    return Factors(arrays, shared, tuple(networks), (K, F, int(reverse)), (M, N), aligned)


@functools.cache
def _largest(device: int, sizes: str) -> Kernel:
    with on(device):
        return Kernel("largest", sizes, THREADS, 1, 16 * THREADS)
