"""Cayley transforms that fit into one multiprocessor of a GPU, each by one launch.

If there are clusters, the products of matrices are shared by several multiprocessors.
"""

import functools
import math
import struct
import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from cayley.kernels.cpu.cayley import check_entries, entries
from cayley.kernels.cuda.runtime.chip import RESERVED, chip
from cayley.kernels.cuda.runtime.nvrtc import Kernel, cluster_line, constants, on, tensor_refusal
from cayley.kernels.memory import readable, readable_gradient

__all__ = ["cayley", "cayley_backward", "neumann", "pitch", "refusal", "renewed"]

THREADS = 512
COLUMNS = 32  # of the threads as ``src/small.cuh`` has them
MOST_BLOCKS, COLUMNS_OF_A_BLOCK = 8, 8  # of a network

Rule = tuple[int, float, int]


def refusal(n: int, x: Tensor, *others: Tensor) -> str | None:
    """Why these kernels cannot form the (n, n) matrix of the free entries x; None if they can.

    Arguments:
        n: The size of the matrix.
        x: The free entries.
        others: The other tensors that are read or written.
    """
    device = x.device
    for other in others:
        if other.device != device:
            return "the CUDA kernels take tensors of one device"
    if reason := tensor_refusal(x, *others):
        return reason
    for other in others:
        if not other.is_contiguous():
            return "the CUDA kernels read matrices from front to back, and one is strided"
    if pitch(n, chip(device.index).memory) is None:
        name = torch.cuda.get_device_name(device)
        return f"two {n} × {n} matrices do not fit on a multiprocessor of {name}"
    return None


@functools.cache
def pitch(n: int, memory: int) -> int | None:
    """Floats from one row of a matrix in shared memory to the next; None if two do not fit.

    If rows begin at a multiple of 4 or 2, that many numbers are read at a time.

    Arguments:
        n: The size of the matrices.
        memory: Bytes of shared memory that a block can have.

    Example:
        >>> [pitch(n, 232448) for n in (33, 169, 170, 171)]
        [36, 170, 170, None]
    """
    for vector in (4, 2, 1):
        width = -(-n // vector) * vector
        # the sums of a norm lie after the matrices, in what RESERVED leaves
        if 8 * _matrix(n, width) <= memory - RESERVED:
            return width
    return None


def cayley(x: Tensor, D: Tensor, bandwidth: int) -> tuple[Tensor, Tensor, Tensor]:
    r"""The matrix :math:`W = (2X - I) D`, the inverse :math:`X = (I + A)^{-1}`, and a copy of D.

    Arguments:
        x: The entries of A above its diagonal, as in
            :func:`~cayley.parametrizations.skew_symmetric`; of G networks (G, ·).
        D: The diagonal of the scaling matrix, (n) or (G, n).
        bandwidth: How many diagonals x fills.

    Returns:
        W, (n, n), X, (n, n), and a copy of D, (n), or all of them with G in front.
    """
    *networks, n = D.shape
    check_entries(x, n, bandwidth, *networks)
    W, X, signs = x.new_empty(*networks, n, n), x.new_empty(*networks, n, n), torch.empty_like(D)
    device, G = x.device.index, math.prod(networks)
    kernel = _kernel("cayley_forward", device, n, _blocks(device, n, G))
    kernel(G, readable(x), D, X, W, signs, bandwidth)
    return W, X, signs


def cayley_backward(G: Tensor, X: Tensor, D: Tensor, bandwidth: int) -> Tensor:
    r"""Gradient :math:`2 (Q^\top - Q)` above the diagonal, with :math:`Q = X^\top G D X^\top`.

    Arguments:
        G: The gradient with respect to W, (n, n), or with the number of networks in front.
        X: The inverse that :func:`cayley` or :func:`neumann` returned.
        D: The diagonal of the scaling matrix that it returned.
        bandwidth: How many diagonals x fills.

    Returns:
        The gradient with respect to x.
    """
    *networks, n = D.shape
    grad_x = X.new_empty(*networks, entries(n, bandwidth))
    device, count = X.device.index, math.prod(networks)
    kernel = _kernel("cayley_backward", device, n, _blocks(device, n, count))
    kernel(count, readable_gradient(G).contiguous(), X, D, grad_x, bandwidth)
    return grad_x


def neumann(
    state: Sequence[Tensor | None], x: Tensor, D: Tensor, rule: Rule
) -> tuple[Tensor, Tensor, Tensor]:
    r"""The matrix :math:`W = (2X - I) D`, the updated :math:`X ≈ (I + A)^{-1}`, and a copy of D.

    The GPU decides how X is updated, as :class:`~cayley.parametrizations.NeumannCayley` describes.

    Arguments:
        state: Its buffers ``inverse``, ``point``, ``residual``, ``updates`` and ``refreshes``. They
            are updated to x, or left alone if the last is None.
        x: The entries of A above its diagonal.
        D: The diagonal of the scaling matrix, (n).
        rule: The order, the tolerance, and ``refresh_every`` or 0.

    Returns:
        W, (n, n), X, (n, n), and a copy of D, (n).
    """
    (n,) = D.shape
    W, X, signs = x.new_empty(n, n), x.new_empty(n, n), torch.empty_like(D)
    _follow(n, state, x, D, X, W, signs, rule)
    return W, X, signs


def renewed(n: int, state: Sequence[Tensor | None], x: Tensor, rule: Rule) -> Tensor:
    """Only the X of :func:`neumann`, (n, n)."""
    X = x.new_empty(n, n)
    _follow(n, state, x, None, X, None, None, rule)
    return X


def _follow(
    n: int,
    state: Sequence[Tensor | None],
    x: Tensor,
    D: Tensor | None,
    X: Tensor,
    W: Tensor | None,
    signs: Tensor | None,
    rule: Rule,
) -> None:
    check_entries(x, n, n - 1)
    order, tolerance, refresh_every = rule
    # a residual that is not finite is never within the tolerance
    finite = min(float(tolerance), sys.float_info.max)
    (bits,) = struct.unpack("Q", struct.pack("d", finite))
    kernel = _kernel("neumann_forward", x.device.index, n)
    kernel(1, readable(x), D, *state, X, W, signs, order, refresh_every, bits)


def _matrix(n: int, width: int) -> int:
    """Floats that a matrix in shared memory has room for."""
    # elimination keeps four pivot rows and columns, of all threads, in the place of the first
    return max(n * width, 8 * -(-n // COLUMNS) * COLUMNS)


@functools.cache
def _blocks(device: int, n: int, networks: int) -> int:
    """How many blocks share the products of a network: up to 8, each with 8 columns or more."""
    most = min(MOST_BLOCKS, chip(device).cluster, n // COLUMNS_OF_A_BLOCK)
    blocks = 1
    while 2 * blocks <= most and networks <= chip(device).resident(2 * blocks):
        blocks *= 2
    # none run on a part of a GPU with too few multiprocessors
    while blocks > 1 and _kernel("cayley_forward", device, n, blocks).resident_clusters() == 0:
        blocks //= 2
    return blocks


@functools.cache
def _kernel(source: str, device: int, n: int, blocks: int = 1) -> Kernel:
    width = pitch(n, chip(device).memory)
    if width is None:
        raise NotImplementedError(f"expected a size that refusal() accepts, got {n}")
    matrix = _matrix(n, width)
    numbers = {"N": n, "THREADS": THREADS, "BLOCKS": blocks, "PITCH": width, "MATRIX": matrix}
    sizes = constants(**numbers) + cluster_line(blocks)
    # after the matrices the sums of all warps, and that of the block
    memory = 4 * (2 * matrix + THREADS // 32 + 1)
    with on(device):
        return Kernel(source, sizes, THREADS, blocks, memory)
