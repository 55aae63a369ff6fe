r"""The largest eigenvalue of a matrix by subspace iteration on both sides, from a good start.

Eigenvalues of a real matrix are complex. This module keeps real bases of the spaces that conjugate
pairs span, and stores a complex vector as two real rows, so that the large products are real.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from cayley.parametrizations.eigenvalue.ritz import (
    GROWTH,
    Candidate,
    RitzProblem,
    candidate,
    real_basis,
    ritz_pairs,
)

__all__ = ["Eigenpair", "follow", "sharpen"]

# Before each Rayleigh–Ritz step: products, and how often the matrix is squared before these;
# products between two orthogonalisations; terms of the series that corrects one eigenvector.
CYCLES = (4, 0), (8, 0), (1, 4), (1, 1), (1, 1), (1, 1)
STRETCH = 4
TERMS = 32
# Relative errors of an eigenvalue: if its eigenvectors are not needed, and before its correction.
ROUGH = 1.5e-7
NEAR = 1e-4


class Eigenpair(NamedTuple):
    """λ = v*Au / v*u, with u and v of norm one.

    The norms of Au − λu and of v*A − λv*, and c = |v*u|, tell how good they are.
    """

    eigenvalue: complex
    u: Tensor
    v: Tensor
    r_u: float
    r_v: float
    c: float


def follow(
    A: Tensor, V: Tensor, W: Tensor, *, eps: float, lax: bool
) -> tuple[Eigenpair | None, Tensor, Tensor, bool]:
    r"""Eigenvalue of largest modulus and its eigenvectors, by subspace iteration on both sides.

    A few products with A on one side and :math:`A^\top` on the other, then two Rayleigh–Ritz steps;
    if these do not settle it, more and more products. In a crowd of eigenvalues of almost the same
    modulus hundreds are needed, so A is squared again and again: :math:`A^{128}` takes seven large
    products, and serves both sides.
    The eigenvalues θ of :math:`V^\top A V` stay within the norm of A, and show which eigenvalues
    there are. Those of the pencil :math:`W^\top A V - \theta\, W^\top V` refine them: their error
    is only :math:`r_u r_v / (c\, d)`, with the norms of the right and the left residual, the
    modulus c of the two vectors' inner product, and the distance d to other eigenvalues. For d, the
    bound takes the smallest distance to another θ, and the estimate takes the spectral radius.

    Then the first pair alone is corrected. With the vector :math:`u = V x` and its residual ϱ,

    .. math:: u + \Pi \sum_{i<n} \frac{A^i}{\theta^{i+1}} \varrho, \qquad
              \Pi = I - V (W^\top V)^{-1} W^\top

    has a residual like that after n more products, but takes products with one vector only. If that
    is not enough, inverse iteration is used.

    Arguments:
        A: The matrix, real, (s, s).
        V: The columns to start from, (s, k).
        W: Those for :math:`A^\top`, (s, k).
        eps: The precision of the eigenvalue: the eigenvectors are accurate to about its root.
        lax: Whether an eigenvalue of modulus below 1 is enough, without good eigenvectors.

    Returns:
        The eigenpair, or None; columns to start from next time, by decreasing modulus of the
        eigenvalues; and whether the reason for None is that another eigenvalue may be as large.
        Otherwise the reason is a residual that is too large.

    Example:
        >>> A = torch.diag(torch.cat((torch.linspace(0.1, 0.5, 99), torch.ones(1))))
        >>> start = torch.randn(100, 8)
        >>> pair, V, W, tied = follow(A, start, start, eps=1e-7, lax=False)
        >>> round(pair.eigenvalue.real, 5), V.shape
        (1.0, torch.Size([100, 8]))
    """
    tied = False
    for basis, left_basis, grown in _bases(A, V, W):
        V, W = basis, left_basis
        AV, AW = A @ V, A.mT @ W
        problem = _orthonormal_problem(V, W, AV, AW)
        pairs = ritz_pairs(problem)
        found = None if pairs is None else candidate(problem, pairs, eps)
        if found is None:
            return None, V, W, False
        tied = found.tied or (found.blurred and float(grown) > GROWTH)
        rho = abs(found.eigenvalue)
        if not tied and found.estimate <= NEAR * rho:
            rough = lax and rho + found.bound < 1
            excess = (found.estimate / (ROUGH * rho)) ** 0.5
            if not rough:
                excess = max(excess, found.residual / found.tolerance)
            terms = _terms(excess, found.ratio)
            for pair in _corrections(A, (V, AV, W, AW), found, terms, rough=rough):
                if rough:
                    good = pair.r_u * pair.r_v <= ROUGH * rho**2 * pair.c
                else:
                    good = max(pair.r_u, pair.r_v) <= found.tolerance and pair.c > eps**0.5
                if good and abs(pair.eigenvalue - found.eigenvalue) <= found.bound + 16 * eps * rho:
                    right, left = (
                        X @ real_basis(*side).to(X)
                        for X, side in ((V, found.right), (W, found.left))
                    )
                    columns = 2 if pair.eigenvalue.imag else 1
                    return pair, _lead(pair.u, right, columns), _lead(pair.v, left, columns), False
    return None, V, W, tied


def _corrections(
    A: Tensor, bases: tuple[Tensor, ...], found: Candidate, terms: int, *, rough: bool
) -> Iterator[Eigenpair]:
    """The pair, corrected by a series of so many terms; then, unless rough, by inverse iteration.

    The bases are V, AV, W and AᵀW. The number of terms is a guess, and in a crowd often too small.
    """
    V, AV, W, AW = bases
    if rough or terms <= TERMS:
        inverse, terms = found.inverse.to(A), min(terms, TERMS)
        u = _correct(A, V, AV, W, inverse, found.x, found.eigenvalue, terms)
        v = _correct(A.mT, W, AW, V, inverse.mT, found.z, found.eigenvalue, terms)
        yield _quotient(A, u, v)
    if not rough:
        y, z = (B @ x.real.to(B) for B, x in ((V, found.x), (W, found.z)))
        yield sharpen(A, found.eigenvalue, y, z)


def _bases(A: Tensor, V: Tensor, W: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Orthonormal bases after more and more products, and how much their second halves have grown.

    The growth is that since the start, compared with the column that has grown most, see
    :func:`~.eigenvalue.ritz.growth`.
    """
    P, half = A, V.shape[1] // 2
    sizes = A.new_ones(2, V.shape[1])
    for products, squarings in CYCLES:
        for _ in range(squarings):
            P = P @ P
            # lest high powers be too large or too small for numbers
            P = P / torch.linalg.matrix_norm(P)
        for n in range(1, products + 1):
            V, W = P @ V, P.mT @ W
            if n % STRETCH == 0 or n == products:
                (V, R), (W, S) = torch.linalg.qr(V), torch.linalg.qr(W)
                sizes = sizes * torch.stack((R.diagonal(), S.diagonal())).abs()
                sizes = sizes / sizes.amax(1, keepdim=True)
        yield V, W, sizes[:, half:].amax()


def _orthonormal_problem(V: Tensor, W: Tensor, AV: Tensor, AW: Tensor) -> RitzProblem:
    H, K = V.mT @ AV, W.mT @ AW
    R, S = torch.addmm(AV, V, H, alpha=-1), torch.addmm(AW, W, K, alpha=-1)
    parts = torch.stack((H, K, R.mT @ R, S.mT @ S, W.mT @ V, W.mT @ AV)).to("cpu", torch.float64)
    return RitzProblem(parts[:2], parts[2:4], parts[4], parts[5])


def _terms(excess: float, ratio: float) -> int:
    """How many terms reduce a residual by a factor, if each reduces it by a ratio."""
    if excess <= 1:
        return 0
    return math.ceil(math.log(excess) / -math.log(ratio)) if 0 < ratio < 1 else TERMS + 1


def _correct(
    A: Tensor, V: Tensor, AV: Tensor, W: Tensor, inverse: Tensor, x: Tensor, theta: complex, n: int
) -> Tensor:
    """The vector Vx, corrected by n terms, as two rows."""
    rows = torch.stack((x.real, x.imag)).to(V)
    a, b = theta.real, theta.imag
    times = torch.tensor([[a, -b], [b, a]], dtype=torch.float64, device="cpu")
    over = (times.mT / abs(theta) ** 2).to(V)
    u = rows @ V.mT
    if n == 0:
        return u
    term = over @ (rows @ AV.mT - times.to(V) @ u)
    total = term
    for _ in range(n - 1):
        term = over @ (term @ A.mT)
        total = total + term
    return u + total - (total @ W) @ inverse.mT @ V.mT


def _quotient(A: Tensor, u: Tensor, w: Tensor) -> Eigenpair:
    """The eigenpair of a right and an unconjugated left vector, two rows each."""
    u, w = u / torch.linalg.matrix_norm(u), w / torch.linalg.matrix_norm(w)
    u, Au, w, wA = (torch.complex(*rows) for rows in (u, u @ A.mT, w, w @ A))
    # the products may be rounded to fewer digits, but not the sums
    double = torch.complex128
    # sums, since products of complex vectors are wrong in torch 2.8 on aarch64
    c = (w.to(double) * u.to(double)).sum()
    eigenvalue = (w.to(double) * Au.to(double)).sum() / c
    theta = eigenvalue.to(u.dtype)
    norms = [torch.linalg.vector_norm(R) for R in (Au - theta * u, wA - theta * w)]
    a, b, *quality = torch.stack((eigenvalue.real, eigenvalue.imag, *norms, c.abs())).tolist()
    return Eigenpair(complex(a, b), u, w.conj(), *quality)


def _lead(u: Tensor, X: Tensor, n: int) -> Tensor:
    """The columns X with u, as n columns, in place of the first n."""
    return torch.cat((torch.stack((u.real, u.imag), 1)[:, :n], X[:, n:]), 1)


def sharpen(A: Tensor, eigenvalue: complex, y: Tensor, z: Tensor) -> Eigenpair:
    r"""The eigenpair nearest to a value, by inverse iteration.

    For a complex value λ the iteration is that of the real matrix
    :math:`(A - \lambda)(A - \bar\lambda)`. It finds a vector y of the plane of the pair, and
    :math:`(A - \bar\lambda) y` is the eigenvector.

    Arguments:
        A: The matrix, real, (s, s).
        eigenvalue: λ, almost an eigenvalue.
        y: A vector to start from, real, (s).
        z: One for the left side.

    Returns:
        The eigenpair.

    Example:
        >>> A, start = torch.diag(torch.tensor([1.0, 2.0, 3.0])), torch.ones(3)
        >>> round(sharpen(A, 2.001 + 0j, start, start).eigenvalue.real, 5)
        2.0
    """
    a, b = eigenvalue.real, eigenvalue.imag
    M = torch.addmm(A, A, A, beta=-2 * a) if b else A.clone()
    M.diagonal().add_(a * a + b * b if b else -a)
    LU, pivots = regular_factors(M)
    y, z = y[:, None], z[:, None]
    for _ in range(3):
        y = torch.linalg.lu_solve(LU, pivots, y)
        z = torch.linalg.lu_solve(LU, pivots, z, adjoint=True)
        y, z = y / torch.linalg.vector_norm(y), z / torch.linalg.vector_norm(z)
    y, z = y[:, 0], z[:, 0]
    if not b:
        return _quotient(A, *(torch.stack((x, torch.zeros_like(x))) for x in (y, z)))
    Ay, zA = A @ y, z @ A
    # the error of λ leaves as much of the conjugate's vector: once more, with the quotient
    for _ in range(2):
        pair = _quotient(A, torch.stack((Ay - a * y, b * y)), torch.stack((zA - a * z, b * z)))
        a, b = pair.eigenvalue.real, pair.eigenvalue.imag
    return pair


def regular_factors(M: Tensor) -> tuple[Tensor, Tensor]:
    """LU factors of a matrix that is singular, or nearly, with no pivot that is 0."""
    LU, pivots, _ = torch.linalg.lu_factor_ex(M)
    d = LU.diagonal()
    largest = d.abs().max()
    least = torch.finfo(M.dtype).eps * torch.where(largest > 0, largest, 1.0)
    d.copy_(torch.where(d.abs() < least, least, d))
    return LU, pivots
