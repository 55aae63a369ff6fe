"""Sums over many rows of outer products, by tensor cores."""

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from cayley.kernels.cuda.runtime.chip import chip
from cayley.kernels.cuda.runtime.networks import arrays_of
from cayley.kernels.cuda.runtime.nvrtc import Kernel, constants, on
from cayley.kernels.steps import outer_products

__all__ = ["half_products", "outer_products_on_cuda"]

THREADS = 256
SIDE, DEPTH = 128, 32  # as in src/half_products.cu
MEMORY = 2 * 4 * (DEPTH // 2) * (SIDE + 8) * 4  # bytes of two stages
ROWS = 256  # those of a block that looks for the largest number
# From this many multiplications on, tensor cores take less time than a library in float32.
MANY = 8e9


def outer_products_on_cuda(
    delta: Tensor, h: Tensor, h0: Tensor, batch_sizes: Tensor | None, reverse: bool
) -> Tensor:
    """What :func:`~cayley.kernels.steps.outer_products` returns, by tensor cores if it is much."""
    if batch_sizes is not None or h.numel() * delta.shape[-1] < MANY:
        return outer_products(delta, h, h0, batch_sizes, reverse)
    return half_products(delta.flatten(-3, -2), h.flatten(-3, -2), h0, reverse)


def half_products(
    a: Tensor, b: Tensor, first: Tensor | None = None, reverse: bool = False
) -> Tensor:
    r"""The sum over rows :math:`\sum_k a_k b_k^\top` in float32, of two halves for each number.

    Arguments:
        a: Rows, (K, M), or those of several networks, (G, K, M).
        b: Others, (K, N) or (G, K, N).
        first: Rows to put before b, or after it with ``reverse``, (F, N) or (G, F, N); as many at
            the other end are left out.
        reverse: Whether they come after it.

    Returns:
        The sum, (M, N) or (G, M, N).
    """
    *networks, K, M = a.shape
    N, F = b.shape[-1], 0 if first is None else first.shape[-2]
    arrays, shared = arrays_of((a, b, first), bool(networks))
    starts = [array.data_ptr() for array in arrays if array is not None]
    aligned = M % 4 == N % 4 == 0 and all(start % 16 == 0 for start in starts)
    kernels = _kernels(a.device.index, M, N, aligned, bool(networks))
    G, down, across = sum(networks) or 1, -(-M // SIDE), -(-N // SIDE)
    rows = K, F, int(reverse)
    largest = a.new_zeros(*networks, M + N, dtype=torch.int32)
    kernels.largest((down + across) * -(-K // ROWS), *arrays, largest, *rows, shared, networks=G)
    at_once = max(1, chip(a.device.index).processors // (down * across * G))
    splits = max(1, min(at_once, K // (4 * DEPTH)))
    parts = a.new_empty(*networks, splits, M, N)
    kernels.products(
        down * across * splits, *arrays, largest, parts, *rows, splits, shared, networks=G
    )
    return parts.sum(-3) if splits > 1 else parts.select(-3, 0)


class _Kernels(NamedTuple):
    """For each column the number of largest modulus, and the products."""

    largest: Kernel
    products: Kernel


@functools.cache
def _kernels(device: int, M: int, N: int, aligned: bool, several: bool) -> _Kernels:
    sizes = constants(M=M, N=N, THREADS=THREADS, ALIGNED=int(aligned), SEVERAL=int(several))
    with on(device):
        return _Kernels(
            Kernel("largest", sizes + constants(DEPTH=ROWS), THREADS, 1, 16 * THREADS),
            Kernel("half_products", sizes, THREADS, 1, MEMORY),
        )
