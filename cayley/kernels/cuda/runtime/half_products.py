"""Sums over many rows of outer products, by tensor cores."""

import functools

from torch import Tensor

from cayley.kernels.cuda.runtime.chip import chip
from cayley.kernels.cuda.runtime.columns import SIDE, THREADS, factors_of
from cayley.kernels.cuda.runtime.nvrtc import Kernel, on
from cayley.kernels.cuda.runtime.wide_products import WIDE, wide_products
from cayley.kernels.steps import outer_products

__all__ = ["half_products", "outer_products_on_cuda"]

DEPTH = 32  # as in src/half_products.cu
MEMORY = 2 * 4 * (DEPTH // 2) * (SIDE + 8) * 4  # bytes of two stages
# From this many multiplications on, tensor cores take less time than a library in float32.
MANY = 8e9


def outer_products_on_cuda(
    delta: Tensor, h: Tensor, h0: Tensor, batch_sizes: Tensor | None, reverse: bool
) -> Tensor:
    """What :func:`~cayley.kernels.steps.outer_products` returns, by tensor cores if it is much."""
    M, N = delta.shape[-1], h.shape[-1]
    if batch_sizes is not None or h.numel() * M < MANY:
        return outer_products(delta, h, h0, batch_sizes, reverse)
    products = wide_products if M * N >= WIDE and M % 8 == N % 8 == 0 else half_products
    return products(delta.flatten(-3, -2), h.flatten(-3, -2), h0, reverse)


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
    factors = factors_of(a, b, first, reverse)
    G, K, (M, N) = factors.G, factors.rows[0], factors.widths
    squares = -(-M // SIDE) * -(-N // SIDE)
    at_once = max(1, chip(a.device.index).processors // (squares * G))
    splits = max(1, min(at_once, K // (4 * DEPTH)))
    parts = a.new_empty(*factors.networks, splits, M, N)
    made = factors.largest(), parts, *factors.rows, splits, factors.shared
    launch = _kernel(a.device.index, factors.sizes())
    launch(squares * splits, *factors.arrays, *made, networks=G)
    return parts.sum(-3) if splits > 1 else parts.select(-3, 0)


@functools.cache
def _kernel(device: int, sizes: str) -> Kernel:
    with on(device):
        return Kernel("half_products", sizes, THREADS, 1, MEMORY)
