"""Sums over many rows of wide outer products, by tensor cores through cuBLAS."""

import functools

import torch
from torch import Tensor

from cayley.kernels.cuda.runtime.columns import ROWS, THREADS, factors_of
from cayley.kernels.cuda.runtime.nvrtc import Kernel, on

__all__ = ["WIDE", "wide_products"]

REST = 2048  # as in src/tensor.cuh
# Tensor cores round towards 0: over more rows these errors would add up.
DEPTH = 256
# From this many sums on, to make halves once takes less time than to do so for each part of them.
WIDE = 2**20
# How many sums over DEPTH rows are in memory at a time, of all networks.
MOST = 2**26


def wide_products(
    a: Tensor, b: Tensor, first: Tensor | None = None, reverse: bool = False
) -> Tensor:
    """What ``half_products`` returns, to float32's precision, for multiples of eight columns."""
    factors = factors_of(a, b, first, reverse)
    G, K, (M, N) = factors.G, factors.rows[0], factors.widths
    all_depths, at_once = -(-K // DEPTH), max(1, MOST // (G * M * N))
    # as many in each turn
    depths = -(-all_depths // -(-all_depths // at_once))
    R = depths * DEPTH
    of_a, of_b = (a.new_empty(2, G, R, width, dtype=torch.half) for width in (M, N))
    down, total = a.new_empty(G, M + N), a.new_zeros(G, M, N)
    launch = _kernel(a.device.index, factors.sizes(DEPTH=ROWS))
    given, blocks = (*factors.arrays, factors.largest()), factors.groups * -(-R // ROWS)
    nearest = [half.view(G * depths, DEPTH, -1) for half in (of_a[0], of_b[1])]
    # nearest halves of a meet rests of b, and rests nearest ones
    both = of_a.flatten(0, 1), of_b.flatten(0, 1)
    for top in range(0, K, R):
        made = of_a, of_b, down, *factors.rows, top, R, G, factors.shared
        launch(blocks, *given, *made, networks=G)
        total += products_of_halves(*nearest).view(G, depths, M, N).sum(1)
        total.add_(products_of_halves(*both).view(2, G, M, N).sum(0), alpha=1 / REST)
    total.mul_(down[:, :M, None]).mul_(down[:, None, M:])
    return total if factors.networks else total[0]


def products_of_halves(a: Tensor, b: Tensor) -> Tensor:
    """The sums over rows of outer products of halves, (G, K, M) and (G, K, N), in float32."""
    return torch.bmm(a.mT, b, out_dtype=torch.float32)


@functools.cache
def _kernel(device: int, sizes: str) -> Kernel:
    with on(device):
        return Kernel("halves", sizes, THREADS, 1, 0)
