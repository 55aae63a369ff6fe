"""The small dense part of following an eigenpair, as kernels of our own."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from cayley.kernels.cuda.runtime.nvrtc import Kernel, constants, on, tensor_refusal
from cayley.kernels.dispatch import use_kernel

__all__ = ["Small", "iterate_on_device", "served", "settle_on_device"]

THREADS = 1024


class Small(NamedTuple):
    """What inverse iteration in the small space tells, in float64.

    Rows are real and imaginary parts.

    Attributes:
        rows: The coordinates x and z of the two vectors, (2, 2, k).
        dual: What gives 1 with these, and 0 with their conjugates, (2, 2, k).
        basis: What makes the columns orthonormal, (2, k, k).
        turn: Multiplication of rows by θ, (2, 2).
        weights: That by its powers from −1 down, side by side, (2, 2 terms).
        factor: What undoes that, transposed, (2, k, k).
        sound: 1 for each side whose columns were independent, (2).
    """

    rows: Tensor
    dual: Tensor
    basis: Tensor
    turn: Tensor
    weights: Tensor
    factor: Tensor
    sound: Tensor


def served(T: Tensor) -> bool:
    """Whether these kernels can follow an eigenpair of a matrix."""
    return T.is_cuda and use_kernel("cuda", tensor_refusal(T), T.device, otherwise=None)


def iterate_on_device(gram: Tensor, lead: Tensor, terms: int) -> Small:
    """Inverse iteration in the small space, on a GPU.

    Arguments:
        gram: All inner products of V, W, AV and AᵀW, (4k, 4k).
        lead: Where to start, (2, 2, k).
        terms: The number of terms of the series.
    """
    k = lead.shape[-1]
    square = (2, k, k)
    shapes = ((2, 2, k), (2, 2, k), square, (2, 2), (2, 2 * terms), square, (2,))
    small = Small(*(gram.new_empty(shape) for shape in shapes))
    with on(gram.device.index):
        _kernel("pencil", gram.device.index, k, terms, 0.0)(3, gram, lead, *small)
    return small


def settle_on_device(
    u: Tensor,
    Au: Tensor,
    residual: Tensor,
    small: Small,
    state: Sequence[Tensor],
    terms: int,
    eps: float,
) -> None:
    """Write what a step has found, on a GPU; :mod:`~.eigenvalue.stage` says where.

    Arguments:
        u: The vectors of the step, (2, 2, s).
        Au: Their products, (2, 2, s).
        residual: Their residuals before the series, (2, 2, s).
        small: What its small space told.
        state: The memory, the latch, the counts, the answer, and whether it is good.
        terms: The number of terms of the series.
        eps: What is added to the spectral radius.
    """
    with on(u.device.index):
        kernel = _kernel("quotient", u.device.index, small.rows.shape[-1], terms, eps)
        kernel(1, u, Au, residual, small.rows, small.factor, small.sound, *state, u.shape[-1])


@functools.cache
def _kernel(source: str, device: int, k: int, terms: int, eps: float) -> Kernel:
    sizes = constants(K=k, TERMS=terms, THREADS=THREADS) + f"constexpr double EPS = {eps!r};\n"
    with on(device):
        return Kernel(source, sizes, THREADS, 1, 0)
