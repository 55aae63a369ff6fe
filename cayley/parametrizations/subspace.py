r"""Subspace iteration for the largest eigenvalues of a matrix, from a good start.

Eigenvalues of a real matrix are complex. All of this keeps real bases of the spaces that conjugate
pairs span, so that the large products are real.
"""

import math

import torch
from torch import Tensor

__all__ = ["Factors", "Side", "iterate", "order_of", "regular_factors"]

# Limits of one call: Rayleigh–Ritz steps, products between two of them, and how unequal products
# may make the columns; pairs that inverse iteration takes on at once; the residual, in units of the
# spectral radius, from which on a Ritz vector is a mixture of eigenvectors.
CYCLES = 10
PRODUCTS = 8
SPREAD = 1e3
PAIRS = 4
BLUR = 0.1

# an eigenvalue, its eigenvector, a basis
Side = tuple[Tensor, Tensor, Tensor]
# a Ritz value θ, and the factors of A − θ or, where θ is complex, of (A − θ)(A − θ̄)
Factors = tuple[complex, Tensor, Tensor]


def iterate(A: Tensor, Y: Tensor, factors: list[Factors]) -> tuple[Side | None, bool]:
    r"""Eigenvalue of largest modulus and its eigenvector, by subspace iteration.

    Products with A, and now and then a Rayleigh–Ritz step: the eigenvalues θ of
    :math:`H = V^\top A V`, V an orthonormal basis, and their residuals
    :math:`r = \|(A V - V H) e\|`. Where products converge slowly, inverse iteration sharpens the
    pairs in question.

    Arguments:
        A: The matrix, real, (s, s).
        Y: The k columns to start from, (s, k).
        factors: Those that an iteration with the transposed matrix has left. With them there is
            only to confirm what that one has found; without, this one searches, and leaves there
            what factors it has made.

    Returns:
        The eigenvalue, its eigenvector and an orthonormal basis, by falling modulus of the
        eigenvalues; or None. And whether, if None, another eigenvalue may be as large; else it is
        the residual that is too large.

    Example:
        >>> A = torch.diag(torch.cat((torch.linspace(0.1, 0.5, 99), torch.ones(1))))
        >>> (eigenvalue, u, X), _ = iterate(A, torch.randn(100, 8), [])
        >>> round(eigenvalue.real.item(), 5), X.shape
        (1.0, torch.Size([100, 8]))
    """
    tied, before, searched, square = False, math.inf, False, None
    confirms = bool(factors)
    for cycle in range(CYCLES):
        V = torch.linalg.qr(Y).Q
        AV = A @ V
        H = V.mT @ AV
        theta, E, r = _ritz(H, torch.addmm(AV, V, H, alpha=-1))
        if theta[0] == 0:
            return None, False
        tolerance = _tolerance(theta, A.dtype)
        doubtful = _rivals(theta, r, 64 * torch.finfo(A.dtype).eps)
        doubtful[0] = r[0] > tolerance
        if confirms:
            doubtful[1:] = False
        # one real column for each Ritz value: of a pair, the real and the imaginary part
        M = torch.where(theta.imag < 0, E.imag, E.real)
        if (searched or confirms) and not doubtful.any():
            u = V.to(V.dtype.to_complex()) @ E[:, 0].to(V.device, V.dtype.to_complex())
            X = V @ torch.linalg.qr(M).Q.to(V)
            return (theta[0], u / torch.linalg.vector_norm(u), X), False
        tied = not doubtful[0]
        if cycle == 0 and confirms:
            Y = A @ (A @ _sharpen(V @ M.to(V), theta, factors, adjoint=True))
            continue
        worst = float(r[doubtful].max()) if doubtful.any() else tolerance
        ratio = float(theta[0].abs() / theta[-1].abs().clamp(min=1e-3 * theta[0].abs()))
        steps = min(PRODUCTS, int(math.log(SPREAD) / max(math.log(ratio), 1e-3)))
        # Inverse iteration where products will not do: the first time by what they should do to
        # the first pair, then by what they did to the worst.
        pairs: list[int] = []
        if not searched and tolerance * ratio ** (steps + 1) < r[0] < 0.1 * theta[0].abs():
            pairs = [0]
        elif searched and worst**2 > before * tolerance and not doubtful[len(r) // 2 :].any():
            pairs = [j for j in range(len(r)) if doubtful[j] and theta[j].imag >= 0][:PAIRS]
        Y, before = (V @ M.to(V), math.inf) if pairs else (AV, worst)
        if pairs:
            if square is None and theta[pairs].imag.any():
                square = A @ A
            made = [_factorise(A, square, complex(theta[j])) for j in pairs]
            factors += [] if confirms else made
            Y = _sharpen(Y, theta, made, adjoint=False)
        if not pairs or not searched:
            for _ in range(steps):
                Y = A @ Y
            searched = True
    return None, tied


def _ritz(H: Tensor, R: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Ritz values by falling modulus, their vectors and residuals; small, and on the CPU."""
    theta, E = torch.linalg.eig(H.to("cpu", torch.float64))
    order = order_of(theta)
    theta, E = theta[order], E[:, order]
    gram = (R.mT @ R).to("cpu", torch.complex128)
    return theta, E, (E.conj() * (gram @ E)).sum(0).real.clamp(min=0).sqrt()


def order_of(theta: Tensor) -> Tensor:
    """Indices by falling modulus, of a positive imaginary part before those of its mate."""
    order = theta.imag.argsort(descending=True, stable=True)
    return order[theta[order].abs().argsort(descending=True, stable=True)]


def _tolerance(theta: Tensor, dtype: torch.dtype) -> float:
    """A residual at which an eigenvector is right: small against the distance to all others."""
    eps = torch.finfo(dtype).eps
    distance = float((theta[1:] - theta[0]).abs().min())
    return max(0.5 * eps**0.5 * distance, 16 * eps * float(theta[0].abs()))


def _rivals(theta: Tensor, r: Tensor, rounding: float) -> Tensor:
    """Which Ritz values may be larger in modulus than the first, as far as residuals can tell."""
    rival = theta.abs() + r >= (1 - rounding) * theta[0].abs() - r[0]
    rival &= theta != theta[0].conj()  # its mate
    # Those of the second half need not converge. But a large residual there is that of a mixture,
    # which may hide an eigenvalue; the pair that the k-th column cuts in two makes one or two.
    blurred = rival[len(r) // 2 :] & (r[len(r) // 2 :] > BLUR * theta[0].abs())
    rival[len(r) // 2 :] = blurred & (blurred.sum() > 2)
    return rival


def _factorise(A: Tensor, square: Tensor | None, theta: complex) -> Factors:
    if theta.imag == 0 or square is None:
        M = A.clone()
        M.diagonal().sub_(theta.real)
    else:
        M = torch.add(square, A, alpha=-2 * theta.real)
        M.diagonal().add_(abs(theta) ** 2)
    return theta, *regular_factors(M)


def regular_factors(M: Tensor) -> tuple[Tensor, Tensor]:
    """LU factors of a matrix that is singular, or nearly, with no pivot that is 0."""
    LU, pivots, _ = torch.linalg.lu_factor_ex(M)
    d = LU.diagonal()
    largest = d.abs().max()
    least = torch.finfo(M.dtype).eps * torch.where(largest > 0, largest, 1.0)
    d.copy_(torch.where(d.abs() < least, least, d))
    return LU, pivots


def _sharpen(Y: Tensor, theta: Tensor, factors: list[Factors], adjoint: bool) -> Tensor:
    """Two steps of inverse iteration on the Ritz vectors, or planes of pairs, next to some θ."""
    Y = Y.clone()
    for shift, LU, pivots in factors:
        j = int((theta - shift).abs().argmin())
        mate = int((theta - theta[j].conj()).abs().argmin())
        columns = [j] if j == mate else [j, mate]
        y = Y[:, columns]
        for _ in range(2):
            y = torch.linalg.lu_solve(LU, pivots, y, adjoint=adjoint)
            y = y / torch.linalg.vector_norm(y, dim=0)
        Y[:, columns] = y
    return Y
