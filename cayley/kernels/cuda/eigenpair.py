"""Kernels that track an eigenpair: the small dense part, the result, and the gradient."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from cayley.kernels.cuda.runtime.nvrtc import Kernel, constants, on, tensor_refusal
from cayley.kernels.dispatch import use_kernel
from cayley.kernels.memory import readable, readable_gradient

__all__ = [
    "InverseIteration",
    "can_follow",
    "inverse_iteration",
    "normalized_gradient",
    "write_answer",
]

# Of the small dense part, and of the gradient.
THREADS = 1024
GRADIENT_BLOCKS, GRADIENT_THREADS = 128, 256


class InverseIteration(NamedTuple):
    """The output of inverse iteration in the space of the columns, in float64.

    Rows are real and imaginary parts.

    Attributes:
        rows: The coordinates x and z of the two vectors, (2, 2, k).
        dual: Rows whose product with these is 1, and with their conjugates 0, (2, 2, k).
        basis: The matrices that make the columns orthonormal, (2, k, k).
        turn: The matrix of the multiplication of rows by θ, (2, 2).
        weights: The same for the powers of θ from −1 down, side by side, (2, 2 terms).
        factor: The inverse of ``basis``, transposed, (2, k, k).
        sound: 1 for each side whose columns were independent, (2).
    """

    rows: Tensor
    dual: Tensor
    basis: Tensor
    turn: Tensor
    weights: Tensor
    factor: Tensor
    sound: Tensor


def can_follow(T: Tensor) -> bool:
    """Whether these kernels can track an eigenpair of a matrix, and the back end allows it."""
    return T.is_cuda and use_kernel("cuda", tensor_refusal(T), T.device, otherwise=None)


def inverse_iteration(gram: Tensor, lead: Tensor, terms: int) -> InverseIteration:
    r"""Inverse iteration in the space of the columns.

    With the blocks :math:`M = W^\top V` and :math:`N = W^\top A V` of the inner products it is

    .. math:: x \leftarrow ((N - \sigma M)^{-1} M)^8 x, \qquad
              z^\top \leftarrow z^\top (M (N - \sigma M)^{-1})^8, \qquad
              \sigma = \frac{z^\top N x}{z^\top M x} (1 + 10^{-6})

    Arguments:
        gram: All inner products of V, W, AV and AᵀW, float64, (4k, 4k).
        lead: Where to start, x and z as rows of real and imaginary parts, float64, (2, 2, k).
        terms: The number of terms of the series.
    """
    k = lead.shape[-1]
    square = (2, k, k)
    shapes = ((2, 2, k), (2, 2, k), square, (2, 2), (2, 2 * terms), square, (2,))
    found = InverseIteration(*(gram.new_empty(shape) for shape in shapes))
    device = gram.device.index
    with on(device):
        _dense_kernel("pencil", device, k, terms, 0.0)(3, gram, lead, *found)
    return found


def write_answer(
    u: Tensor,
    Au: Tensor,
    residual: Tensor,
    found: InverseIteration,
    state: Sequence[Tensor],
    terms: int,
    eps: float,
) -> None:
    """Write the result of a step of a :class:`~.eigenvalue.tracker.Tracker`.

    Arguments:
        u: The vectors of the step, float64, (2, 2, s).
        Au: Their products, (2, 2, s).
        residual: Their residuals before the series, (2, 2, s).
        found: The output of the inverse iteration.
        state: The status, the lead, the latch, the counts, the answer, and whether it is good.
        terms: The number of terms of the series.
        eps: What is added to the spectral radius.
    """
    device = u.device.index
    with on(device):
        kernel = _dense_kernel("quotient", device, found.rows.shape[-1], terms, eps)
        kernel(1, u, Au, residual, found.rows, found.factor, found.sound, *state, u.shape[-1])


def normalized_gradient(G: Tensor, W: Tensor, answer: Tensor) -> Tensor:
    r"""The gradient :math:`G / d + \langle G, W \rangle (f_1 u_1^\top + f_2 u_2^\top)`.

    Torch would need six launches, which on most hosts take longer than the kernels themselves.

    Arguments:
        G: The gradient with respect to W, (s, s).
        W: The matrix after the division, (s, s).
        answer: f_1, f_2, u_1, u_2 and d, as a :class:`~.eigenvalue.tracker.Tracker`
            gives them, (4s + 1).
    """
    s, device = len(W), W.device.index
    G, W = readable_gradient(G), readable(W)
    G = G if G.stride(1) == 1 else G.contiguous()
    parts, result = W.new_empty(GRADIENT_BLOCKS), W.new_empty(s, s)
    _gradient_kernel("inner", device)(GRADIENT_BLOCKS, G, W, parts, s, G.stride(0))
    _gradient_kernel("rank_two", device)(GRADIENT_BLOCKS, G, parts, answer, result, s, G.stride(0))
    return result


@functools.cache
def _dense_kernel(source: str, device: int, k: int, terms: int, eps: float) -> Kernel:
    sizes = constants(K=k, TERMS=terms, THREADS=THREADS) + f"constexpr double EPS = {eps!r};\n"
    with on(device):
        return Kernel(source, sizes, THREADS, 1, 0)


@functools.cache
def _gradient_kernel(source: str, device: int) -> Kernel:
    sizes = constants(BLOCKS=GRADIENT_BLOCKS, THREADS=GRADIENT_THREADS)
    with on(device):
        return Kernel(source, sizes, GRADIENT_THREADS, 1, 0)
