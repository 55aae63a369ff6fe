"""Ritz values: the eigenvalues of a large matrix as far as two small bases show them.

All is on the CPU, in float64: the matrices are as small as the bases.
"""

import cmath
import math
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "GROWTH",
    "Candidate",
    "RitzPairs",
    "RitzProblem",
    "Rival",
    "candidate",
    "factors",
    "growth",
    "order_of",
    "real_basis",
    "ritz_pairs",
    "ritz_problem",
    "rival",
]

# The residual, in units of the spectral radius, above which a Ritz vector counts as a mixture.
BLUR = 0.1
# Mixtures are no reason for doubt if the second half of the columns has grown less than this,
# compared with the first: an eigenvalue as large as the first would have grown as much.
GROWTH = 0.05


class RitzProblem(NamedTuple):
    """All that a Rayleigh–Ritz step needs to know about A, float64, on the CPU.

    Attributes:
        inner: VᵀAV and WᵀAᵀW, with orthonormal V and W, (2, k, k).
        outer: The Gram matrices of what AV and AᵀW have outside the spaces of V and W, (2, k, k).
        M, N: WᵀV and WᵀAV, (k, k).
    """

    inner: Tensor
    outer: Tensor
    M: Tensor
    N: Tensor


def factors(gram: Tensor) -> Tensor:
    """The Cholesky factors L of VᵀV and WᵀW, NaN where columns are dependent, (2, k, k).

    Arguments:
        gram: All inner products of V, W, AV and AᵀW, float64, on the CPU, (4k, 4k).
    """
    G = _blocks(gram)
    L, info = torch.linalg.cholesky_ex(torch.stack((G[0, 0], G[1, 1])))
    return torch.where(info[:, None, None] == 0, L, math.nan) if info.any() else L


def ritz_problem(gram: Tensor, L: Tensor) -> RitzProblem:
    """The input of a Rayleigh–Ritz step, in orthonormal bases, from all inner products.

    Arguments:
        gram: Those of V, W, AV and AᵀW, float64, on the CPU, (4k, 4k).
        L: Its :func:`factors`.

    Returns:
        The problem; it is not finite if the columns are dependent.
    """
    G, eye = _blocks(gram), torch.eye(L.shape[-1], dtype=L.dtype, device=L.device)
    bases = torch.linalg.solve_triangular(L, eye, upper=False)
    right, left = bases
    inner = bases @ torch.stack((G[0, 2], G[1, 3])) @ bases.mT
    products = bases @ torch.stack((G[2, 2], G[3, 3])) @ bases.mT
    M, N = (left @ G[1, i] @ right.mT for i in (0, 2))
    return RitzProblem(inner, torch.baddbmm(products, inner.mT, inner, alpha=-1), M, N)


def growth(L: Tensor) -> float:
    """How much the second half of the columns has grown, compared with the first.

    Arguments:
        L: The :func:`factors` of V and W that are powers of A and of Aᵀ times orthonormal columns.
    """
    sizes = L.diagonal(dim1=-2, dim2=-1)
    return float((sizes[:, sizes.shape[1] // 2 :].amax(1) / sizes.amax(1)).amax())


def _blocks(gram: Tensor) -> Tensor:
    k = len(gram) // 4
    return gram.reshape(4, k, 4, k).transpose(1, 2)


class RitzPairs(NamedTuple):
    """The eigenvalues of VᵀAV, one of each pair.

    Attributes:
        values: θ by decreasing modulus, m of them.
        vectors: Their vectors x in terms of V, (k, m).
        residuals: The norms of (A − θ)Vx.
    """

    values: list[complex]
    vectors: Tensor
    residuals: list[float]


def ritz_pairs(P: RitzProblem) -> RitzPairs | None:
    """The eigenvalues of the right side, or None if that is not finite."""
    H, H_out = P.inner[0], P.outer[0]
    if not (_is_finite(H) and _is_finite(H_out)):
        return None
    theta, E = torch.linalg.eig(H)
    theta, (e,) = _upper(theta, E)
    # an eigenvector of H has no residual inside the space of V
    return RitzPairs(theta, e, _squares(H_out, _as_real(e)).sqrt().tolist())


class Rival(NamedTuple):
    """The Ritz values other than the one of an eigenvalue, in units of its modulus.

    Attributes:
        modulus: The largest modulus.
        reach: The largest one of a modulus plus its own residual: no eigenvalue near them is
            larger. If it is below 1, a :func:`candidate` has no rivals.
    """

    modulus: float
    reach: float


def rival(pairs: RitzPairs, theta: complex) -> Rival:
    """How near others come to an eigenvalue that is followed.

    Arguments:
        pairs: The Ritz values.
        theta: The eigenvalue that is followed, in the units of A; not 0.
    """
    distances = [abs(value - theta) for value in pairs.values]
    own = distances.index(min(distances))
    # of a pair that is nearest to a real eigenvalue, one is another
    others = [
        (abs(value), r)
        for i, (value, r) in enumerate(zip(pairs.values, pairs.residuals, strict=True))
        if i != own or (value.imag and not theta.imag)
    ]
    modulus = max((a for a, _ in others), default=0.0)
    reach = max((a + r for a, r in others), default=0.0)
    return Rival(modulus / abs(theta), reach / abs(theta))


class Candidate(NamedTuple):
    """The pair that a Rayleigh–Ritz step takes to be the one of the largest eigenvalue.

    Attributes:
        eigenvalue: θ, with a nonnegative imaginary part.
        x, z: Its right vector in terms of V, and its left vector, unconjugated, in terms of W.
        residual: The larger one of the norms of their residuals.
        tolerance: What that has to be for good eigenvectors.
        bound, estimate: How far θ may be off, and how far it probably is.
        tied: Whether another eigenvalue may be as large.
        blurred: Whether several vectors of the second half are mixtures, which may hide one.
        ratio: The modulus of the middle Ritz value, in units of |θ|: by at least this much a
            product shortens what is outside the bases.
        inverse: That of WᵀV.
        right, left: One eigenvalue of each pair, their vectors in terms of V and W, and which of
            them belong to θ.
    """

    eigenvalue: complex
    x: Tensor
    z: Tensor
    residual: float
    tolerance: float
    bound: float
    estimate: float
    tied: bool
    blurred: bool
    ratio: float
    inverse: Tensor
    right: tuple[list[complex], Tensor, int]
    left: tuple[list[complex], Tensor, int]


def candidate(P: RitzProblem, pairs: RitzPairs, eps: float) -> Candidate | None:
    """The largest eigenvalue as far as the bases show it, or None if they are not finite.

    Arguments:
        P: The problem.
        pairs: Its :func:`ritz_pairs`.
        eps: The precision of the eigenvalue.
    """
    inverse = torch.linalg.inv_ex(P.M).inverse
    pencil = inverse @ P.N
    if not _is_finite(pencil):
        return None
    q, X = torch.linalg.eig(pencil)
    Z = torch.linalg.solve_ex(X, inverse.to(X.dtype)).result.mT
    if not _is_finite(Z):
        return None
    # each Ritz vector is refined by the pair with the nearest right vector
    (theta, e, r), (q, XZ) = pairs, _upper(q, X, Z)
    nearest = (XZ[0].mH @ e).abs().argmax(0).tolist()
    refined, xz = [q[i] for i in nearest], XZ[..., nearest]
    # lists, since for so few numbers an operator takes longer than the arithmetic
    c = torch.linalg.vector_norm(xz[1], dim=0).reciprocal().tolist()
    r_x, r_z = _residuals(P, refined, xz).tolist()
    r_z = [a * b for a, b in zip(r_z, c, strict=True)]
    distance, slack = _distances(theta), 64 * eps * abs(theta[0])
    value, bound, better = theta.copy(), r.copy(), [False] * len(theta)
    for i, d in enumerate(distance):
        # Vectors of different eigenvalues have an inner product too, as large as their errors: what
        # refines is near the Ritz value, and its two vectors belong together.
        near = abs(refined[i] - theta[i]) <= r[i] + slack
        if near and c[i] * d > 2 * (r_x[i] + r_z[i]):
            value[i], bound[i], better[i] = refined[i], r_x[i] * r_z[i] / (c[i] * d), True
    moduli = [abs(one) for one in value]
    rho = max(moduli)
    if rho == 0:
        return None
    j = moduli.index(rho)
    least = (1 - 64 * eps) * rho - bound[j]
    rivals = [i for i, modulus in enumerate(moduli) if i != j and modulus + bound[i] >= least]
    # Those of the second half need not converge. But a large residual there is that of a mixture,
    # which may hide an eigenvalue; the pair that the k-th column cuts in two makes one or two.
    # The index of the Ritz value of each column: a pair has two columns.
    columns = [i for i, one in enumerate(theta) for _ in range(2 if one.imag else 1)]
    half = len(columns) // 2
    second = [i for i in rivals if columns.index(i) >= half]
    mixtures = sum(columns.count(i) for i in second if r[i] > BLUR * rho)
    z = c[j] * xz[1, :, j]
    return Candidate(
        value[j],
        xz[0, :, j],
        # complex arithmetic leaves small imaginary parts on real vectors
        z if refined[j].imag else z.real.to(z.dtype),
        residual=max(r_x[j], r_z[j]),
        tolerance=max(0.5 * eps**0.5 * distance[j], 16 * eps * rho),
        bound=bound[j],
        estimate=r_x[j] * r_z[j] / (c[j] * rho) if better[j] else math.inf,
        tied=len(second) < len(rivals),
        blurred=mixtures > 2,
        ratio=abs(theta[columns[half]]) / rho,
        inverse=inverse,
        right=(theta, e, j),
        left=(q, XZ[1], nearest[j]),
    )


def _is_finite(X: Tensor) -> bool:
    """Whether all entries are finite; one that is not leaves its trace in the sum."""
    return cmath.isfinite(X.sum().item())


def order_of(theta: Tensor) -> list[int]:
    """Indices by decreasing modulus, positive imaginary parts before their conjugates."""
    keys = [(-abs(value), -value.imag) for value in theta.tolist()]
    return sorted(range(len(keys)), key=keys.__getitem__)


def _upper(theta: Tensor, *vectors: Tensor) -> tuple[list[complex], Tensor]:
    """One eigenvalue of each pair by decreasing modulus, and their vectors, (…, k, m)."""
    values = theta.tolist()
    upper = [i for i in order_of(theta) if values[i].imag >= 0]
    return [values[i] for i in upper], torch.stack(vectors)[..., upper]


def _distances(theta: list[complex]) -> list[float]:
    """Of one eigenvalue of each pair, that to the nearest other one or to its mate."""
    return [
        min([2 * a.imag or math.inf, *(abs(a - b) for j, b in enumerate(theta) if j != i)])
        for i, a in enumerate(theta)
    ]


def _residuals(P: RitzProblem, theta: list[complex], X: Tensor) -> Tensor:
    """Norms of (A − θ)Vx and (Aᵀ − θ)Wz, from the parts inside and outside the spaces."""
    Y = _as_real(X)
    inside = torch.view_as_complex((P.inner @ Y).unflatten(-1, (-1, 2))) - X.new_tensor(theta) * X
    return torch.linalg.vector_norm(inside, dim=-2).square().add(_squares(P.outer, Y)).sqrt()


def _as_real(X: Tensor) -> Tensor:
    """Each complex column as two real ones, its real and its imaginary part."""
    return torch.view_as_real(X.contiguous()).flatten(-2)


def _squares(G: Tensor, Y: Tensor) -> Tensor:
    """x*Gx of complex columns x, given as real ones; G is positive but for rounding."""
    return (Y * (G @ Y)).unflatten(-1, (-1, 2)).sum((-3, -1)).clamp(min=0)


def real_basis(theta: list[complex], X: Tensor, first: int) -> Tensor:
    """One real column for each eigenvalue: of a pair, the real and the imaginary part."""
    order = sorted(range(len(theta)), key=lambda i: i != first)
    columns = [2 * i + part for i in order for part in range(2 if theta[i].imag else 1)]
    return torch.linalg.qr(_as_real(X)[:, columns]).Q
