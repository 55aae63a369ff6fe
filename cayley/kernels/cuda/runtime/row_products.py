"""Gradients of parameters as sums over all steps, in one kernel."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from cayley.kernels.cuda.runtime.chip import chip
from cayley.kernels.cuda.runtime.nvrtc import Kernel, cluster_line, constants, on
from cayley.kernels.cuda.runtime.parts import Part

__all__ = ["LITTLE", "RowProduct", "row_products"]

THREADS, SIDE = 256, 32  # as in src/row_products.cu
BLOCKS = 8  # number of blocks that share the rows, if clusters are available
MOST = 3  # largest number of products of a launch

# Up to this many multiplications, one launch of ours takes less time than several of a library.
LITTLE = 1.2e9

Array = Tensor | Part | int


class RowProduct(NamedTuple):
    r"""The sum :math:`\sum_k a_k b_k^\top` over all rows.

    Attributes:
        a: An array of rows.
        b: Another one.
        sum: Where the sum is written, (F, G).
        widths: The number of elements from one row to the next, for a and b; 1 for an a whose
            columns lie one after another, with all rows.
        shape: F and G, the number of elements of a row that count, for a and b.
        first: Rows to put before b; as many of its last rows are left out.
        gates: The number of gates of a unit, if they are side by side in a; in the sum, all units
            of a gate are.
        apart: With several networks, the number of elements from the sum of one to that of the
            next; 0 if there are no others between.
        shared: The sum of 1, 2 and 4 for those of a, b and ``first`` that all networks share.
    """

    a: Array
    b: Array
    sum: Array
    widths: tuple[int, int]
    shape: tuple[int, int]
    first: Tensor | None = None
    gates: int = 1
    apart: int = 0
    shared: int = 0


def row_products(
    device: int,
    rows: int,
    products: Sequence[RowProduct],
    summed: Array | None,
    total: Tensor | None,
    shape: tuple[int, int],
    B: int,
    networks: int = 1,
) -> None:
    """Compute up to three products, and the sum over the rows of another array, if there is one.

    With several networks all arrays are those of the first; those of the others follow.

    Arguments:
        device: The number of the device.
        rows: The number of rows of the products.
        products: What to compute.
        summed: The other array.
        total: Where the sum over its rows goes.
        shape: The number of its rows, and of its columns.
        B: The number of rows of ``first``.
        networks: How often to do so.
    """
    arguments: list[Array | None] = []
    squares = 0
    for a, b, sum, widths, (F, G), first, gates, apart, shared in products:
        arguments += [a, b, first, sum, widths[0], rows if widths[0] == 1 else 1, widths[1]]
        arguments += [F, G, gates, apart or F * G, shared]
        squares += -(-F // SIDE) * -(-G // SIDE)
    arguments += [None, None, None, None, 0, 1, 0, 0, 0, 1, 0, 0] * (MOST - len(products))
    clusters = squares + -(-shape[1] // SIDE)
    launch = _kernel(device, networks > 1)
    launch(clusters, *arguments, summed, total, *shape, rows, B, networks=networks)


@functools.cache
def _kernel(device: int, several: bool) -> Kernel:
    blocks = min(BLOCKS, chip(device).cluster)
    sizes = constants(BLOCKS=blocks, SEVERAL=int(several)) + cluster_line(blocks)
    # the sums of all warps, and those of the block
    memory = 4 * (THREADS // 32 + 1) * SIDE * SIDE
    with on(device):
        return Kernel("row_products", sizes, THREADS, blocks, memory)
