r"""The largest eigenvalue of a matrix by subspace iteration on both sides, from a good start.

Eigenvalues of a real matrix are complex. This module keeps real bases of the spaces that conjugate
pairs span, and stores a complex vector as two real rows, so that the large products are real.
"""

import cmath
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "GROWTH",
    "Candidate",
    "Eigenpair",
    "RitzPairs",
    "RitzProblem",
    "Rival",
    "candidate",
    "factors",
    "follow",
    "growth",
    "order_of",
    "ritz_pairs",
    "ritz_problem",
    "rival",
    "sharpen",
]

# Before each Rayleigh–Ritz step: products, and how often the matrix is squared before these;
# products between two orthogonalisations; terms of the series that corrects one eigenvector.
CYCLES = (4, 0), (8, 0), (1, 4), (1, 1), (1, 1), (1, 1)
STRETCH = 4
TERMS = 32
# Relative errors of an eigenvalue: if its eigenvectors are not needed, and before its correction.
ROUGH = 1.5e-7
NEAR = 1e-4
# The residual, in units of the spectral radius, above which a Ritz vector counts as a mixture.
BLUR = 0.1
# Mixtures are no reason for doubt if the second half of the columns has grown less than this,
# compared with the first: an eigenvalue as large as the first would have grown as much.
GROWTH = 0.05


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
                        X @ _real_basis(*side).to(X)
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
    :func:`growth`.
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


def ritz_pairs(P: RitzProblem) -> RitzPairs | None:
    """The eigenvalues of the right side, or None if that is not finite."""
    H, H_out = P.inner[0], P.outer[0]
    if not (_is_finite(H) and _is_finite(H_out)):
        return None
    theta, E = torch.linalg.eig(H)
    theta, (e,) = _upper(theta, E)
    # an eigenvector of H has no residual inside the space of V
    return RitzPairs(theta, e, _squares(H_out, _as_real(e)).sqrt().tolist())


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
    every = [i for i, one in enumerate(theta) for _ in range(2 if one.imag else 1)]
    half = len(every) // 2
    second = [i for i in rivals if every.index(i) >= half]
    mixtures = sum(every.count(i) for i in second if r[i] > BLUR * rho)
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
        ratio=abs(theta[every[half]]) / rho,
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


def _real_basis(theta: list[complex], X: Tensor, first: int) -> Tensor:
    """One real column for each eigenvalue: of a pair, the real and the imaginary part."""
    order = sorted(range(len(theta)), key=lambda i: i != first)
    columns = [2 * i + part for i in order for part in range(2 if theta[i].imag else 1)]
    return torch.linalg.qr(_as_real(X)[:, columns]).Q


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
