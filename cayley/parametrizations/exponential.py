"""Orthogonal matrices by the matrix exponential, around a base that can be moved."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from cayley.initializers import rotation_angles
from cayley.parametrizations.cayley import differentiated
from cayley.parametrizations.parametrization import (
    Parametrization,
    Pullback,
    check_orthogonal,
    check_square,
    full_precision,
)
from cayley.parametrizations.polar import refine
from cayley.parametrizations.skew import (
    Skew,
    diagonal_entries,
    positions,
    skew_at,
    skew_blocks,
)
from cayley.tracing import computes_now

__all__ = ["MatrixExponential", "matrix_exponential"]

# how many squarings may do without a correction in between
EXACT_SQUARES = 8


def matrix_exponential(K: Tensor, B: Tensor) -> Tensor:
    r"""Exponential of a skew-symmetric (skew-Hermitian) matrix, relative to a base.

    .. math:: W = B \exp(K)

    Note:
        The error of :func:`torch.matrix_exp` grows with the norm of K: in float32 with n = 256, its
        distance from the orthogonal matrices is 4e-5 √n for :math:`\|K\|_2 = 30`.
        :func:`~cayley.parametrizations.polar.refine` reduces that to 3e-7 √n, and to 1e-6 √n up to
        :math:`\|K\|_2 = 3000`. (Angles above π repeat themselves, so a norm of that size means that
        the step size is too large.) In float32 the error is also up to 5e-5 if the 1-norm of K is
        between 0.2 and 0.58; :meth:`MatrixExponential.with_pullback`, which layers use in training,
        has a series of its own.

    References:
        Cheap Orthogonal Constraints in Neural Networks: A Simple Parametrization of the Orthogonal
        and Unitary Group, Lezcano-Casado, Martínez-Rubio, 2019.

    Arguments:
        K: A skew matrix, real or complex, (n, n).
        B: An orthogonal (unitary) matrix, (n, n).

    Returns:
        W, orthogonal (unitary), (n, n).

    Example:
        >>> quarter = torch.tensor([[0.0, -torch.pi / 2], [torch.pi / 2, 0.0]])
        >>> (matrix_exponential(quarter, torch.eye(2)) * 100).round() + 0.0
        tensor([[   0., -100.],
                [ 100.,    0.]])
    """
    with full_precision(K, B):
        return refine(B @ torch.matrix_exp(K))


class MatrixExponential(Parametrization):
    r"""Orthogonal matrices :math:`W = B \exp(K)`.

    K is skew-symmetric and trained; B is orthogonal and fixed, the identity until
    ``right_inverse`` or ``rebase_`` moves it. K reaches every orthogonal matrix whose determinant
    is that of B.

    Note:
        Far from K = 0 the exponential distorts: a step of K is not the step of W that the gradient
        points to. ``rebase_`` moves the base to the current W, where the gradient with respect to K
        is the Riemannian one (dynamic trivialisation). For a
        :class:`~cayley.parametrizations.StructuredMatrix` ``matrix`` of this map, call it now and
        then::

            optimizer.step()
            if step % 100 == 0:
                matrix.map.rebase_(matrix.K)

        The momentum of the optimizer stays as it is.

    References:
        Cheap Orthogonal Constraints in Neural Networks: A Simple Parametrization of the Orthogonal
        and Unitary Group, Lezcano-Casado, Martínez-Rubio, 2019.
        Trivializations for Gradient-Based Optimization on Manifolds, Lezcano-Casado, 2019.

    Arguments:
        n: The size of W.

    Shapes:
        K's free entries (n(n−1)/2) ↦ W (n, n).

    Example:
        >>> exponential = MatrixExponential(4)
        >>> W = exponential(*exponential.sample())
        >>> bool(exponential.defect(W) < 1e-6), round(float(W.det()))
        (True, 1)
    """

    names = ("K",)
    B: Tensor

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.skew = Skew(n)
        self.register_buffer("B", torch.eye(n))

    def forward(self, K: Tensor) -> Tensor:
        """The orthogonal matrix of the free entries ``K``."""
        # where no derivative is needed: bitwise the same matrix as :meth:`with_pullback` gives
        if computes_now(K) and not differentiated(K):
            return self.with_pullback(K)[0]
        return matrix_exponential(self.skew(K), self.B)

    @torch.no_grad()
    def with_pullback(self, *X: Tensor, update: bool = False) -> tuple[Tensor, Pullback]:
        """The matrix, detached, and its pullback in closed form."""
        (x,) = X
        places = positions(self.n, None, x)
        with full_precision(x, self.B):
            K, B = skew_at(x, self.n, places), self.B.clone()
            powers, norm = _powers(K)
            W = refine(B @ powers[-1])

        def pullback(G: Tensor) -> Sequence[Tensor]:
            with full_precision(G):
                P = B.mT @ G @ powers[-1].mT
                M = _integral(P - P.mT, K, powers, norm)
            return (M.flatten().index_select(0, places),)

        return W, pullback

    def right_inverse(self, W: Tensor) -> Tensor:
        """K = 0; the base becomes ``W``."""
        check_square(W, self.n, is_complex=False)
        check_orthogonal(W, self.defect(W))
        self.B.copy_(refine(W))
        return W.new_zeros(diagonal_entries(self.n, 1, self.n - 1))

    @torch.no_grad()
    def rebase_(self, K: Tensor) -> None:
        """Move the base to the matrix of ``K`` and set ``K`` to zero: W stays, up to rounding."""
        self.B.copy_(self(K))
        K.zero_()

    def sample(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Sequence[Tensor]:
        """Blocks [[0, t], [−t, 0]] with t ~ U[0, π/2), whose exponential is e^{±it}, and B = I."""
        self.B.copy_(torch.eye(self.n, device=self.B.device, dtype=self.B.dtype))
        return (skew_blocks(rotation_angles(self.n, device=device, dtype=dtype), self.n),)


def _powers(K: Tensor) -> tuple[list[Tensor], float]:
    r"""The matrices exp(K / 2^m), exp(K / 2^{m−1}), …, exp(K), and a bound of ‖K / 2^m‖₂ ≤ 1.

    The eigenvalues of a skew-symmetric K are pairs ±iθ, so that ‖K‖₂⁴ ≤ ‖K²‖²_F / 2.
    """
    # scaled first: the squares of large entries would overflow in float32
    size = K.abs().max()
    scaled = K / size
    # both at once, since reading a number waits for a GPU
    largest, square = torch.stack((size, torch.linalg.matrix_norm(scaled @ scaled))).tolist()
    # 0 if K is 0, or if some entry of K is NaN, which makes all of W NaN
    norm = largest * (square**0.5 / 2**0.25) if 0 < largest < math.inf else 0.0
    m = max(0, math.ceil(math.log2(norm))) if norm > 0 else 0
    powers = [_series(K / 2.0**m, norm / 2.0**m)]
    for k in range(1, m + 1):
        square = powers[-1] @ powers[-1]
        # each squaring doubles the distance from the orthogonal matrices
        powers.append(refine(square) if k % EXACT_SQUARES == 0 else square)
    return powers, norm / 2.0**m


def _series(A: Tensor, norm: float) -> Tensor:
    """exp(A) by its power series, for ‖A‖₂ ≤ 1, in blocks that share the same powers.

    In float32 :func:`torch.matrix_exp` is off by up to 5e-5 for norms of 0.2 to 0.58, and each
    squaring would double that.
    """
    order, size = 0, 1.0
    while size > torch.finfo(A.dtype).eps:
        order += 1
        size *= norm / order
    length = max(1, math.isqrt(order))
    powers = [torch.eye(len(A), device=A.device, dtype=A.dtype), A]
    for _ in range(length - 1):
        powers.append(powers[-1] @ A)
    firsts = range(0, order + 1, length)
    total = torch.zeros_like(A)
    for first in reversed(firsts):
        if first != firsts[-1]:
            total = powers[length] @ total
        for k in range(first, min(first + length, order + 1)):
            total = total + powers[k - first] / math.factorial(k)
    return total


def _integral(N: Tensor, K: Tensor, powers: Sequence[Tensor], norm: float) -> Tensor:
    r"""The integral :math:`\int_0^1 e^{-uK} N e^{uK} du` for skew-symmetric N and K.

    A power series in the commutator with K gives the integral from 0 to :math:`2^{-m}`. Then m
    times the interval is doubled, by adding :math:`Q^\top M Q` to M with Q one of ``powers``.

    Note:
        With :math:`N = G \exp(K)^\top` it is the gradient with respect to K of a function whose
        gradient with respect to exp(K) is G. Autograd takes it from the exponential of a matrix of
        twice the size that has G as a block. Together with the exponential itself that takes four
        times as long on a CPU (``benchmarks/formation.py``), and in float32 at n = 512, ‖K‖₂ = 3
        its error is 2e-4, where that of this function is 2e-6.

    Arguments:
        N: A skew-symmetric matrix, (n, n).
        K: A skew-symmetric matrix, (n, n).
        powers: The powers that :func:`_powers` returns.
        norm: The norm that it returns.
    """
    m = len(powers) - 1
    term = N / 2.0**m
    M, order, size = term, 0, 1.0  # size bounds the next term, relative to N
    while size > torch.finfo(N.dtype).eps:
        order += 1
        size *= 2 * norm / (order + 1)
        P = K @ term
        # the product in the other order is the transpose
        term = (P.mT - P) / (2.0**m * (order + 1))
        M = M + term
    for Q in powers[:-1]:
        M = M + Q.mT @ M @ Q
    return M
