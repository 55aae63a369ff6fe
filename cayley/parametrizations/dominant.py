r"""The dominant eigenpair of a matrix that changes a little from call to call.

Eigenvalues of a real matrix are complex; everything that follows keeps real bases of the spaces
that conjugate pairs span, so that the large products are real.
"""

import math
import warnings
from enum import IntEnum

import torch
from torch import Tensor

__all__ = ["Event", "dominant_eigenpair", "followed_columns"]

# Vectors followed on each side; the last of them, the scouts, get a random part of this norm.
COLUMNS = 32
SCOUTS = 4
NOISE = 0.1
# Matrices up to this size are decomposed at every call, others once in so many calls.
SMALL = 96
AUDIT = 128
# Limits of one call: Rayleigh–Ritz steps, products between two of them, and how unequal products
# may make the columns; pairs that inverse iteration takes on at once; the residual, in units of the
# spectral radius, from which on a Ritz vector is a mixture of eigenvectors.
CYCLES = 10
PRODUCTS = 8
SPREAD = 1e3
PAIRS = 4
BLUR = 0.1


class Event(IntEnum):
    """How an eigenpair was found; all but ``FOLLOWED`` took a full decomposition.

    Attributes:
        FOLLOWED: From the subspaces of the call before.
        DIRECT: There was nothing to follow, or the matrix is so small that this is faster.
        AUDIT: It was time to look at all eigenvalues.
        RESIDUAL: The iteration did not converge, or its two sides did not agree.
        TIE: Another eigenvalue is, as far as the iteration can tell, as large in modulus.
        MULTIPLE: The eigenvalue is (nearly) multiple; its derivative is taken as 0.
        NONFINITE: The matrix has entries that are no numbers; so has the answer.
    """

    FOLLOWED = 0
    DIRECT = 1
    AUDIT = 2
    RESIDUAL = 3
    TIE = 4
    MULTIPLE = 5
    NONFINITE = 6


def followed_columns(s: int) -> int:
    """How many vectors are kept on each side for an (s, s) matrix; none if it is small."""
    return 0 if s <= SMALL else COLUMNS


def dominant_eigenpair(
    T: Tensor, right: Tensor, left: Tensor, counts: Tensor, quiet: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    r"""Spectral radius, an eigenvalue of that modulus and its two eigenvectors.

    .. math:: T u = \lambda u, \qquad v^* T = \lambda v^*, \qquad \rho(T) = |\lambda|

    Subspace iteration on :math:`T` and on :math:`T^\top`, each from the k vectors that the call
    before left, with a Rayleigh–Ritz step (the eigenvalues θ of the k × k matrix
    :math:`V^\top T V`) after every few products. A Ritz pair comes with the norm r of its residual.
    Where products converge slowly, a step of inverse iteration sharpens the pairs in question.
    An answer is trusted when on both sides r is small against the distance to the other Ritz
    values, every other :math:`|\theta_j| + r_j` is below :math:`|\theta| - r`, and both sides have
    found the same eigenvalue; otherwise all eigenvalues are computed.
    :math:`\lambda = v^* T u / v^* u` is off by the product of the two sides' errors.

    The vectors stand for the k largest eigenvalues, so that one that grows is there long before it
    is the largest; when it crosses, the order of the Ritz values changes and nothing else. One that
    leaps ahead from outside in a single step comes in by the products, and mixes with what is there
    before it stands alone: mixtures are known by their residuals, and no answer is given while
    there are any. If it has no part at all in the subspace, it takes root in the last vectors,
    which get a random part at every call, and grows from call to call. And every ``AUDIT`` calls
    all eigenvalues are computed.

    Note:
        T decides how much work this is, so the GPU is waited for. The vectors stay on T's device;
        the k × k eigenproblems are solved on the CPU. The second derivative of ρ is right; it costs
        a full decomposition.

    Arguments:
        T: The matrix, real, (s, s).
        right: The vectors that the call before returned, (s, k); zeros if there was none, and k = 0
            to have all eigenvalues computed.
        left: The same for :math:`T^\top`.
        counts: How often each :class:`Event` happened so far, (7), int64. It dates the audits,
            seeds the random parts, and tells whether to warn of a multiple eigenvalue.
        quiet: Whether not to warn of a multiple eigenvalue where ρ ≤ 1, bool, ().

    Returns:
        ρ, differentiable in T; λ, complex, with a nonnegative imaginary part; u and v, complex, of
        norm one, (s) each; ``right`` and ``left`` for the next call; the event, int64.

    Example:
        >>> T = torch.tensor([[0.0, -2.0], [2.0, 0.0]])
        >>> nothing, counts = torch.zeros(2, 0), torch.zeros(len(Event), dtype=torch.int64)
        >>> rho, eigenvalue, *_ = dominant_eigenpair(
        ...     T, nothing, nothing, counts, torch.tensor(False)
        ... )
        >>> rho, eigenvalue
        (tensor(2.), tensor(0.+2.j))
    """
    return _dominant(T, right, left, counts, quiet)


def _forward(
    T: Tensor, right: Tensor, left: Tensor, counts: Tensor, quiet: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    if T.isfinite().all():
        answer, event = None, Event.DIRECT
        if right.shape[1]:
            answer, event = _follow(T, right, left, int(counts.sum()))
        if answer is None:
            answer, multiple = _decompose(T, right.shape[1])
            if multiple:
                event = Event.MULTIPLE
                if not counts[event] and not (quiet and answer[0].abs() <= 1):
                    _warn(complex(answer[0]))
    else:
        nan = T.new_full((len(T),), torch.nan, dtype=T.dtype.to_complex())
        answer, event = (nan[0], nan, nan, right, left), Event.NONFINITE
    eigenvalue, u, v, right, left = answer
    dtype = T.dtype.to_complex()
    # an operator may not return what it was given
    return (
        eigenvalue.abs().to(T.device, T.dtype, copy=True),
        eigenvalue.to(T.device, dtype, copy=True),
        u.to(dtype, copy=True),
        v.to(dtype, copy=True),
        right.to(T.dtype, copy=True),
        left.to(T.dtype, copy=True),
        torch.tensor(int(event), device=T.device),
    )


Answer = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
Side = tuple[Tensor, Tensor, Tensor]
# a Ritz value θ, and the factors of A − θ or, where θ is complex, of (A − θ)(A − θ̄)
Factors = tuple[complex, Tensor, Tensor]


def _follow(T: Tensor, right: Tensor, left: Tensor, seen: int) -> tuple[Answer | None, Event]:
    """The eigenpair by iteration, or the reason why it is not to be trusted."""
    if not right.any():
        return None, Event.DIRECT
    if seen % AUDIT == 0:
        return None, Event.AUDIT
    # an accelerator may round float32 products to fewer digits than the residuals need
    A = T if T.device.type == "cpu" else T.to(torch.float64)
    generator = torch.Generator().manual_seed(seen)
    scale = NOISE / len(T) ** 0.5
    noise = scale * torch.randn(2, len(T), SCOUTS, generator=generator, dtype=A.dtype)
    right, left = right.to(A), left.to(A)
    right, left = (
        torch.cat((X[:, :-SCOUTS], X[:, -SCOUTS:] + part), 1)
        for X, part in zip((right, left), noise.to(A.device), strict=True)
    )
    factors: list[Factors] = []
    side, event = _iterate(A, right, factors)
    if side is None:
        return None, event
    other, event = _iterate(A.mT, left, factors)
    if other is None:
        return None, event
    (theta, u, right), (theta_left, w, left) = side, other
    A, u, v = T.to(torch.float64), u.to(torch.complex128), w.to(torch.complex128).conj()
    overlap = torch.vdot(v, u)
    eigenvalue = torch.vdot(v, torch.complex(A @ u.real, A @ u.imag)) / overlap
    moved = max(abs(complex(eigenvalue) - complex(x)) for x in (theta, theta_left))
    # written so that NaN fails too
    if not (moved <= 1e-3 * eigenvalue.abs() and overlap.abs() > least_overlap(T.dtype)):
        return None, Event.RESIDUAL
    return (eigenvalue, u, v, right, left), Event.FOLLOWED


def _iterate(A: Tensor, Y: Tensor, factors: list[Factors]) -> tuple[Side | None, Event]:
    """Ritz value and vector of largest modulus and an ordered basis, by subspace iteration.

    ``factors`` are those that the other side has left, of the transposed matrices. With them this
    side has only to confirm what the other one has found; without, it searches itself, and leaves
    there what factors it has made.
    """
    event, before, searched, square = Event.RESIDUAL, math.inf, False, None
    confirms = bool(factors)
    for cycle in range(CYCLES):
        V = torch.linalg.qr(Y).Q
        AV = A @ V
        H = V.mT @ AV
        theta, E, r = _ritz(H, torch.addmm(AV, V, H, alpha=-1))
        if theta[0] == 0:
            return None, Event.RESIDUAL
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
            return (theta[0], u / torch.linalg.vector_norm(u), X), Event.FOLLOWED
        event = Event.RESIDUAL if doubtful[0] else Event.TIE
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
    return None, event


def _ritz(H: Tensor, R: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Ritz values by falling modulus, their vectors and residuals; small, and on the CPU."""
    theta, E = _sorted(*torch.linalg.eig(H.to("cpu", torch.float64)))
    gram = (R.mT @ R).to("cpu", torch.complex128)
    return theta, E, (E.conj() * (gram @ E)).sum(0).real.clamp(min=0).sqrt()


def _sorted(theta: Tensor, E: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues by falling modulus, those with a positive imaginary part before their mates."""
    order = theta.imag.argsort(descending=True, stable=True)
    order = order[theta[order].abs().argsort(descending=True, stable=True)]
    return theta[order], E[:, order]


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
    return theta, *_factors(M)


def _factors(M: Tensor) -> tuple[Tensor, Tensor]:
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


def _decompose(T: Tensor, k: int) -> tuple[Answer, bool]:
    """The eigenpair from all eigenvalues, and whether it is (nearly) multiple."""
    A = T.to(torch.float64)
    theta, E = _sorted(*torch.linalg.eig(A))
    eigenvalue, u = theta[0], E[:, 0]
    v = _left_eigenvector(A, eigenvalue)
    small = least_overlap(T.dtype)
    distance = (theta - eigenvalue).abs()
    distance[0] = torch.inf
    overlap = torch.vdot(v, u).abs()
    # at 0 the modulus has no derivative either
    multiple = (overlap <= small) | (distance.min() <= small * eigenvalue.abs()) | (eigenvalue == 0)
    columns = torch.where(theta.imag < 0, E.imag, E.real)
    right = torch.linalg.qr(columns[:, :k]).Q
    # rows of the inverse of E are left eigenvectors; where it has none, a start is all they are
    rows = torch.linalg.inv_ex(E).inverse[:k] if k else E[:0]
    left = torch.where(theta[:k].imag < 0, rows.mT.imag, rows.mT.real)
    left = torch.linalg.qr(left).Q if left.isfinite().all() else right
    return (eigenvalue, u, v, right, left), bool(multiple)


def _left_eigenvector(A: Tensor, eigenvalue: Tensor) -> Tensor:
    """V with v*A = λv*, by inverse iteration, which other eigenvalues do not disturb."""
    M = A.to(torch.complex128)
    M.diagonal().sub_(eigenvalue)
    LU, pivots = _factors(M)
    generator = torch.Generator().manual_seed(len(A))
    v = torch.randn(len(A), 1, generator=generator, dtype=torch.complex128).to(A.device)
    for _ in range(3):
        v = torch.linalg.lu_solve(LU, pivots, v, adjoint=True)
        v = v / torch.linalg.vector_norm(v)
    return v[:, 0]


def least_overlap(dtype: torch.dtype) -> float:
    """The |v*u| of unit vectors below which an eigenvalue counts as multiple: √eps."""
    return torch.finfo(dtype).eps ** 0.5


def _warn(eigenvalue: complex) -> None:
    warnings.warn(
        f"the dominant eigenvalue {eigenvalue:.6g} is (nearly) multiple and has no "
        "derivative: this step is a plain one, which takes the spectral radius as constant. It is "
        "counted under Event.MULTIPLE; if it happens often, draw the matrix anew",
        stacklevel=2,
    )


_dominant = torch.library.custom_op("cayley::dominant_eigenpair", _forward, mutates_args=())


@_dominant.register_fake
def _(T, right, left, counts, quiet):
    vector = T.new_empty(len(T), dtype=T.dtype.to_complex())
    return (
        T.new_empty(()),
        vector.new_empty(()),
        vector,
        torch.empty_like(vector),
        torch.empty_like(right),
        torch.empty_like(left),
        counts.new_empty(()),
    )


def _save(ctx, inputs, output):
    rho, eigenvalue, u, v, _, _, event = output
    ctx.save_for_backward(inputs[0], rho, eigenvalue, u, v, event)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _differentiate(ctx, grad_rho, *_):
    T, rho, eigenvalue, u, v, event = ctx.saved_tensors
    if grad_rho is None:
        return None, None, None, None, None
    if torch.is_grad_enabled() and T.requires_grad:
        # the gradient will be differentiated itself: torch's own decomposition can be
        theta = torch.linalg.eigvals(T)
        radius = theta.abs()[theta.detach().abs().argmax()]
        (C,) = torch.autograd.grad(radius, T, create_graph=True)
    else:
        C = _gradient(rho, eigenvalue, u, v)
    C = torch.where(event == int(Event.MULTIPLE), torch.zeros_like(C), C)
    return grad_rho * C, None, None, None, None


def _gradient(rho: Tensor, eigenvalue: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """∂ρ/∂T = Re(λ̄ S) / ρ = (α Re S + β Im S) / ρ with S = v̄uᵀ / v*u, λ = α + iβ."""
    factor = eigenvalue.conj() / (rho * torch.vdot(v, u))
    left, right = v.conj() * factor, u
    return torch.outer(left.real, right.real) - torch.outer(left.imag, right.imag)


_dominant.register_autograd(_differentiate, setup_context=_save)
