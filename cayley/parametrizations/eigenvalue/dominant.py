"""The dominant eigenpair of a matrix that changes a little from call to call."""

import warnings
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from cayley.parametrizations.eigenvalue.ritz import order_of
from cayley.parametrizations.eigenvalue.subspace import follow, sharpen

__all__ = [
    "NOISE",
    "SCOUTS",
    "Eigenpair",
    "Event",
    "division",
    "dominant_eigenpair",
    "followed_columns",
]

# Vectors tracked on each side; the last of them, the scouts, get a random part of this norm.
COLUMNS = 32
SCOUTS = 4
NOISE = 0.1
# Matrices up to this size are decomposed at every call, larger ones once every AUDIT calls.
SMALL = 96
AUDIT = 128

# ρ, λ, u, v, the vectors of both sides for the next call, and the event
Eigenpair = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


class Event(IntEnum):
    """How an eigenpair was found; all but ``FOLLOWED`` and ``LATE`` took a full decomposition.

    Attributes:
        FOLLOWED: From the subspaces of the previous call.
        DIRECT: There was no previous call, or the matrix is so small that this is faster.
        AUDIT: It was time to compute all eigenvalues.
        RESIDUAL: The iteration did not converge, or its two sides did not agree.
        TIE: Another eigenvalue has, as far as the iteration can tell, the same modulus.
        MULTIPLE: The eigenvalue is (nearly) multiple; its derivative is taken as 0.
        NONFINITE: The matrix has non-finite entries, and so has the result.
        LATE: Tracked on a GPU without waiting, and found in a later call to have been too
            inaccurate, or no longer the largest.
    """

    FOLLOWED = 0
    DIRECT = 1
    AUDIT = 2
    RESIDUAL = 3
    TIE = 4
    MULTIPLE = 5
    NONFINITE = 6
    LATE = 7


def followed_columns(s: int) -> int:
    """How many vectors are kept on each side for an (s, s) matrix; none if it is small."""
    return 0 if s <= SMALL else COLUMNS


def dominant_eigenpair(
    T: Tensor, right: Tensor, left: Tensor, counts: Tensor, lax: Tensor
) -> Eigenpair:
    r"""Spectral radius, an eigenvalue of that modulus and its two eigenvectors.

    .. math:: T u = \lambda u, \qquad v^* T = \lambda v^*, \qquad \rho(T) = |\lambda|

    Subspace iteration on :math:`T` and on :math:`T^\top`, each starting from the k vectors of the
    previous call, see :func:`~.eigenvalue.subspace.follow`: some products with T or with powers of
    it, some Rayleigh–Ritz steps, and a correction of the first pair alone. The result is trusted if
    its two residuals are small compared with the distance to the other Ritz values, and if each of
    these, including its error, is smaller than :math:`|\lambda|`; otherwise all eigenvalues are
    computed.

    The vectors belong to the k largest eigenvalues, so a growing eigenvalue is among them long
    before it is the largest; when it overtakes, only the order of the Ritz values changes. An
    eigenvalue that jumps ahead from outside in a single step enters through the products, and mixes
    with the others before it stands alone: such mixtures have large residuals, and no result is
    given while there are any. If it has no component in the subspace at all, it first enters the
    last vectors, which get a random part at every call, and grows from call to call. In addition,
    all eigenvalues are computed every ``AUDIT`` calls.

    Note:
        How much work this is depends on T, so it waits for the GPU: at the start, at every
        Rayleigh–Ritz step (mostly one or two), and at the end. The vectors stay on T's device; the
        k × k eigenproblems are solved on the CPU. The second derivative of ρ is correct, but costs
        a full decomposition.

    Arguments:
        T: The matrix, real, (s, s).
        right: The vectors that the previous call returned, (s, k); zeros if there was none, and
            k = 0 to have all eigenvalues computed.
        left: The same for :math:`T^\top`.
        counts: How often each :class:`Event` has happened so far, (8), int64. It decides when the
            audits take place, seeds the random parts, and tells whether a warning of a multiple
            eigenvalue is due.
        lax: Whether the derivative of a ρ ≤ 1 is not needed, bool, (). Such a ρ is then accurate to
            1e-6, u and v are rough, and there is no warning of a multiple eigenvalue.

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
    return _dominant(T, right, left, counts, lax)


def division(pair: Eigenpair, latched: Tensor, eps: float) -> Tensor:
    r"""What the division of T by ρ + ε and its gradient need, in one tensor.

    Arguments:
        pair: The result of :func:`dominant_eigenpair`.
        latched: Whether T is divided at all, bool, ().
        eps: What is added to ρ.

    Returns:
        Four rows f_1, f_2, u_1, u_2 and one number d, (4s + 1), such that W = T / d and
        :math:`\partial L / \partial T = G / d + \langle G, W \rangle (f_1 u_1^\top + f_2
        u_2^\top)` for :math:`G = \partial L / \partial W`.

    Example:
        >>> T = torch.tensor([[0.0, -2.0], [2.0, 0.0]])
        >>> nothing, counts = torch.zeros(2, 0), torch.zeros(len(Event), dtype=torch.int64)
        >>> pair = dominant_eigenpair(T, nothing, nothing, counts, torch.tensor(False))
        >>> division(pair, torch.tensor(True), 0.0)[-1]
        tensor(2.)
    """
    rho, eigenvalue, u, v, _, _, event = pair
    w = v.conj()
    d = torch.where(latched & (rho != 0), rho + eps, 1.0)
    factor = eigenvalue.conj() / (rho * (w * u).sum() * d)
    # a multiple eigenvalue has no derivative
    f = torch.where(latched & (event != int(Event.MULTIPLE)), -(factor * w), 0)
    return torch.cat((f.real, -f.imag, u.real, u.imag, d[None]))


def _forward(T: Tensor, right: Tensor, left: Tensor, counts: Tensor, lax: Tensor) -> Eigenpair:
    # everything that the CPU must know, in one transfer; the extremes of T are NaN if an entry is
    finite = torch.stack(T.aminmax()).isfinite().all()
    seen, finite, started, lenient, warned = torch.stack(
        (counts.sum(), finite, right.any(), lax, counts[Event.MULTIPLE])
    ).tolist()
    if finite:
        answer, event = None, Event.DIRECT
        if started:
            answer, event = _follow(T, right, left, seen, bool(lenient))
        if answer is None:
            answer, multiple = _decompose(T, right.shape[1])
            if multiple:
                event = Event.MULTIPLE
                if not warned and not (lenient and abs(answer[0]) <= 1):
                    _warn(answer[0])
    else:
        nan = T.new_full((len(T),), torch.nan, dtype=T.dtype.to_complex())
        answer, event = (complex(torch.nan, torch.nan), nan, nan, right, left), Event.NONFINITE
    eigenvalue, u, v, right, left = answer
    # a custom operator must not return its inputs
    return (
        T.new_tensor(abs(eigenvalue)),
        u.new_tensor(eigenvalue, dtype=T.dtype.to_complex()),
        u.to(T.dtype.to_complex(), copy=True),
        v.to(T.dtype.to_complex(), copy=True),
        right.to(T.dtype, copy=True),
        left.to(T.dtype, copy=True),
        torch.tensor(int(event), device=T.device),
    )


Answer = tuple[complex, Tensor, Tensor, Tensor, Tensor]


def _follow(
    T: Tensor, right: Tensor, left: Tensor, seen: int, lax: bool
) -> tuple[Answer | None, Event]:
    """The eigenpair by iteration, or the reason why it cannot be trusted."""
    if seen % AUDIT == 0:
        return None, Event.AUDIT
    # an accelerator may round float32 products to fewer digits than the residuals need
    A = T if T.device.type == "cpu" else T.to(torch.float64)
    generator = torch.Generator("cpu").manual_seed(seen)
    scale = NOISE / len(T) ** 0.5
    noise = scale * torch.randn(2, len(T), SCOUTS, generator=generator, dtype=A.dtype, device="cpu")
    V, W = (
        torch.cat((X[:, :-SCOUTS], X[:, -SCOUTS:] + part), 1)
        for X, part in zip((right.to(A), left.to(A)), noise.to(A.device), strict=True)
    )
    pair, V, W, tied = follow(A, V, W, eps=torch.finfo(T.dtype).eps, lax=lax)
    if pair is None:
        return None, Event.TIE if tied else Event.RESIDUAL
    return (pair.eigenvalue, pair.u, pair.v, V, W), Event.FOLLOWED


def _decompose(T: Tensor, k: int) -> tuple[Answer, bool]:
    """The eigenpair from all eigenvalues, and whether it is (nearly) multiple."""
    A = T.to(torch.float64)
    # on the host: cuSOLVER's Xgeev ended processes that shared a GPU under MPS
    host = A.cpu()
    if k == 0:
        theta = torch.linalg.eigvals(host)
        theta = theta[order_of(theta)]
        right = left = A[:, :0]
    else:
        theta, E = torch.linalg.eig(host)
        order = order_of(theta)
        theta, E = theta[order], E[:, order]
        # of a pair, the real and the imaginary part; k rows of the inverse for the left side
        basis = torch.where(theta.imag < 0, E.imag, E.real)
        right = torch.linalg.qr(basis[:, :k]).Q
        rows = torch.linalg.solve_ex(basis.mT, torch.eye(len(E), k).to(basis)).result
        # if there is no inverse, any start will do
        left = torch.linalg.qr(rows).Q if rows.isfinite().all() else right
        right, left = right.to(A.device), left.to(A.device)
    eigenvalue = complex(theta[0])
    generator = torch.Generator("cpu").manual_seed(len(A))
    start = torch.randn(len(A), generator=generator, dtype=A.dtype, device="cpu").to(A.device)
    pair = sharpen(A, eigenvalue, start, start)
    least = least_overlap(T.dtype)
    distance = float((theta[1:] - theta[0]).abs().min()) if len(theta) > 1 else torch.inf
    # at 0 the modulus has no derivative either; written so that NaN is multiple too
    simple = pair.c > least and distance > least * abs(eigenvalue) and eigenvalue != 0
    return (eigenvalue, pair.u, pair.v, right, left), not simple


def least_overlap(dtype: torch.dtype) -> float:
    """The |v*u| of unit vectors below which an eigenvalue counts as multiple: √eps."""
    return torch.finfo(dtype).eps ** 0.5


def _warn(eigenvalue: complex) -> None:
    warnings.warn(
        f"the dominant eigenvalue {eigenvalue:.6g} is (nearly) multiple and has no "
        "derivative: the gradient of this step takes the spectral radius as a constant. Such steps "
        "are counted as Event.MULTIPLE; if there are many, initialise the matrix again",
        stacklevel=2,
    )


_dominant = torch.library.custom_op("cayley::dominant_eigenpair", _forward, mutates_args=())


@_dominant.register_fake
def _(T: Tensor, right: Tensor, left: Tensor, counts: Tensor, lax: Tensor) -> tuple[Tensor, ...]:
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


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    rho, eigenvalue, u, v, _, _, event = output
    ctx.save_for_backward(inputs[0], rho, eigenvalue, u, v, event)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, grad_rho: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    T, rho, eigenvalue, u, v, event = ctx.saved_tensors
    if grad_rho is None:
        return None, None, None, None, None
    if torch.is_grad_enabled() and T.requires_grad:
        # the gradient will be differentiated again, which torch's own decomposition allows
        theta = torch.linalg.eigvals(T)
        radius = theta.abs()[theta.detach().abs().argmax()]
        (C,) = torch.autograd.grad(radius, T, create_graph=True)
    else:
        C = _gradient(rho, eigenvalue, u, v)
    C = torch.where(event == int(Event.MULTIPLE), torch.zeros_like(C), C)
    return grad_rho * C, None, None, None, None


def _gradient(rho: Tensor, eigenvalue: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """∂ρ/∂T = Re(λ̄ S) / ρ = (α Re S + β Im S) / ρ with S = v̄uᵀ / v*u, λ = α + iβ."""
    # not torch.vdot, which is wrong in torch 2.8 on aarch64
    factor = eigenvalue.conj() / (rho * (v.conj() * u).sum())
    left, right = v.conj() * factor, u
    return torch.outer(left.real, right.real) - torch.outer(left.imag, right.imag)


_dominant.register_autograd(_differentiate, setup_context=_save)
