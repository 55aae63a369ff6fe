"""Orthogonal matrices by the scaled Cayley transform with an inverse updated by Neumann series."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cayley.checks import check_integer, check_number, is_integer
from cayley.kernels.cuda import cayley as cuda
from cayley.kernels.dispatch import use_kernel
from cayley.parametrizations.cayley import (
    count_signs,
    differentiated,
    place_signs_,
    scaled_cayley,
)
from cayley.parametrizations.formation import formed_under_transforms, of_inverse, pulled_back
from cayley.parametrizations.parametrization import (
    Parametrization,
    Pullback,
    check_orthogonal,
    check_square,
    full_precision,
)
from cayley.parametrizations.rebase_option import Rebase, RebaseOption
from cayley.parametrizations.resolvent import resolvent
from cayley.parametrizations.signature import small_cayley
from cayley.parametrizations.skew import Skew, diagonal_entries, positions, skew_symmetric
from cayley.tracing import computes_now, needs_loop, transformed

__all__ = ["NeumannCayley", "neumann_update", "update_inverse_"]


def neumann_update(inverse: Tensor, delta: Tensor, order: int) -> Tensor:
    r"""The inverse of a matrix that took a small step, by a Neumann series.

    .. math::
        (M - \delta)^{-1} = (I - X)^{-1} M^{-1}
            \approx (I + X + \dots + X^k)\, M^{-1}, \qquad X = M^{-1} \delta,

    with an error of :math:`O(\|X\|^{k+1})`. For :math:`M = I + A` with A skew-symmetric
    :math:`\|M^{-1}\|_2 \le 1`, and the series converges for every :math:`\|\delta\|_2 < 1`.

    References:
        Orthogonal Gated Recurrent Unit with Neumann-Cayley Transformation, Mucllari,
        Zadorozhnyy, Pospisil, Nguyen, Ye, 2022.

    Arguments:
        inverse: :math:`M^{-1}`, (n, n).
        delta: δ, the matrix before the step minus the matrix after it, (n, n).
        order: The highest power k.

    Returns:
        The approximate inverse of M − δ, (n, n).

    Example:
        >>> neumann_update(torch.eye(1), torch.tensor([[0.5]]), order=2)
        tensor([[1.7500]])
    """
    X = inverse @ delta
    series = inverse
    for _ in range(order):
        series = torch.addmm(inverse, X, series)
    return series


class NeumannCayley(Parametrization):
    r"""Orthogonal matrices :math:`W = \tilde A (I - A) D`, where :math:`\tilde A` follows A.

    A is skew-symmetric and trained, D is a diagonal of ±1 and fixed, as in
    :class:`~cayley.parametrizations.ScaledCayley`. The inverse
    :math:`\tilde A \approx (I + A)^{-1}` is not computed from scratch but updated by
    :func:`neumann_update` whenever A has changed, with the step :math:`\delta A` that A *really*
    took: the A that :math:`\tilde A` belongs to is kept beside it. The gradient is that of the
    exact transform with :math:`\tilde A` in place of the inverse,

    .. math::
        Q = \tilde A^\top \frac{\partial L}{\partial W} (D + W^\top), \qquad
        \frac{\partial L}{\partial A} = Q^\top - Q.

    A factorisation replaces the series for the first matrix, whenever the residual
    :math:`\|I - \tilde A (I + A)\|_F`, which is measured at every update, is above the tolerance,
    every ``refresh_every`` updates, and after :meth:`refresh_`.

    Note:
        W is formed as :math:`(2 \tilde A - I) D`, which is equal for the exact inverse, and
        :func:`~cayley.parametrizations.polar.refine` then moves it to an orthogonal matrix. So W is
        orthogonal up to rounding (12 times the square of the tolerance at worst), while it may
        differ from the exact transform of A by four times the residual. The paper has no such step:
        with ``refine=False`` W is the product :math:`\tilde A (I - A) D` itself, as far from
        orthogonal as :math:`\tilde A` is from the inverse, and the gradient above contains that W.
        Together with ``tolerance=float("inf")``, and :meth:`refresh_` at the beginning of every
        epoch, that is the paper's algorithm as printed.

        Only :meth:`advance` writes the buffers. A layer calls it in a forward pass in training mode
        that records a gradient for A. All other calls compute the same W from the buffers and leave
        them alone: reading W, or evaluating at any moment, even with other parameters in place of
        A, does not affect training, and a ``state_dict`` taken at any moment resumes it exactly. If
        a model is trained in evaluation mode, :math:`\tilde A` is not updated, and every pass
        costs a factorisation. Transforms of :mod:`torch.func` and forward-mode derivatives use
        the exact transform.

        Whether to factorise depends on numbers. In float32 a GPU decides that itself if two
        matrices fit into one of its multiprocessors (n up to 170 on an H200): one launch forms W,
        another its gradient, and no pass waits. Otherwise, and under
        ``cayley.backend("reference")``, every pass waits for the GPU once, and once more if A has
        changed. With ``refine=False`` W takes a few more launches.

    References:
        Orthogonal Gated Recurrent Unit with Neumann-Cayley Transformation, Mucllari,
        Zadorozhnyy, Pospisil, Nguyen, Ye, 2022.

    Arguments:
        n: The size of W.
        order: The highest power of the series, at least 1.
        negative_ones: How many of D's entries are −1: the last ones. None for n // 2, or for none
            of them with ``rebase``.
        tolerance: The largest residual that is accepted, 0 to factorise in every pass; None for the
            square root of the machine precision, 3.5e-4 in float32.
        refresh_every: After how many updates to factorise in any case; None to leave that to the
            tolerance.
        refine: Whether W is moved to an orthogonal matrix.
        rebase: See :class:`~cayley.parametrizations.ScaledCayley`.

    Attributes:
        inverse: :math:`\tilde A`, (n, n).
        point: The free entries of the A that it belongs to, (n(n−1)/2); one 0 for n = 1.
        residual: The residual of ``inverse``; infinite if the next update is to factorise.
        updates: How often ``inverse`` was updated.
        refreshes: How many of these were factorisations.

    Shapes:
        A's free entries (n(n−1)/2) ↦ W (n, n).

    Example:
        >>> neumann = NeumannCayley(4, order=2)
        >>> A = neumann.sample()[0].requires_grad_()
        >>> for _ in range(3):
        ...     W = neumann.advance(A + 1e-4 * neumann.updates)
        >>> bool(neumann.defect(W) < 1e-6), int(neumann.updates), int(neumann.refreshes)
        (True, 3, 1)
    """

    names = ("A",)
    stateful = True
    D: Tensor
    inverse: Tensor
    point: Tensor
    residual: Tensor
    updates: Tensor
    refreshes: Tensor

    def __init__(
        self,
        n: int,
        *,
        order: int = 2,
        negative_ones: int | None = None,
        tolerance: float | None = None,
        refresh_every: int | None = None,
        refine: bool = True,
        rebase: Rebase | None = None,
    ) -> None:
        super().__init__(n)
        self.rebase_option = RebaseOption(rebase)
        if not is_integer(order) or order < 1:
            raise ValueError(
                f"expected an order of at least 1, got {order!r}: ScaledCayley is the exact "
                "transform"
            )
        if tolerance is not None:
            check_number(self, "tolerance", tolerance, closed=True)
        if refresh_every is not None:
            check_integer("refresh_every", refresh_every)
        self.order = order
        self.negative_ones = count_signs(n, negative_ones, rebased=rebase is not None)
        self.tolerance = tolerance
        self.refresh_every = refresh_every
        self.refine = refine
        self.skew = Skew(n)
        self.register_buffer("D", torch.empty(n))
        self.register_buffer("inverse", torch.empty(n, n))
        # at least one entry: safetensors cannot store empty buffers
        self.register_buffer("point", torch.empty(max(diagonal_entries(n, 1, n - 1), 1)))
        self.register_buffer("residual", torch.empty(()))
        self.register_buffer("updates", torch.empty((), dtype=torch.int64))
        self.register_buffer("refreshes", torch.empty((), dtype=torch.int64))
        self._start()

    def _start(self) -> None:
        place_signs_(self.D, self.negative_ones)
        for buffer in (self.inverse, self.point, self.updates, self.refreshes):
            buffer.zero_()
        self.refresh_()

    @property
    def awaits_rebase(self) -> bool:
        """Whether the option ``rebase`` was given, but no optimizer does what it says."""
        return self.rebase_option.is_unmet

    def refresh_(self) -> None:
        """Have the next update factorise I + A, as the paper does in every epoch."""
        self.residual.fill_(torch.inf)

    def forward(self, A: Tensor, *, update: bool = False) -> Tensor:
        """The orthogonal matrix of the free entries ``A``; with ``update``, updates the buffers."""
        # the updated inverse has a gradient only, which transforms of torch.func do not use
        if transformed(A):
            return formed_under_transforms(A, self.D, self.n, None)
        if needs_loop(A):
            return scaled_cayley(self.skew(A), self.D)
        # where no derivative is needed: bitwise the same matrix as :meth:`with_pullback` gives
        if computes_now(A) and not differentiated(A) and self._is_one_launch(A):
            return self._launch(A, update)[0]
        with full_precision(A, self.inverse):
            inverse = self._inverse(A, _update_inverse if update else None, _next_inverse)
            M = self.skew(A)
            inverse = _inverse_of(M, inverse)
            return (
                of_inverse(inverse, self.D) if self.refine else printed_matrix(inverse, M, self.D)
            )

    @torch.no_grad()
    def with_pullback(self, *X: Tensor, update: bool = False) -> tuple[Tensor, Pullback]:
        """The matrix, detached, and its pullback in closed form."""
        (A,) = X
        n = self.n
        if self._is_one_launch(A):
            W, inverse, D = self._launch(A, update)
            return W, lambda G: (cuda.cayley_backward(G, inverse, D, n - 1),)
        D, places = self.D.clone(), positions(n, None, A)
        with full_precision(A, self.inverse):
            # without the custom operators, which are for tracers: nothing is traced here
            inverse = self._inverse(A, update_inverse_ if update else None, next_inverse).clone()
            if self.refine:
                W = of_inverse(inverse, D)
                return W, lambda G: (pulled_back(G, inverse, D, places),)
            W = printed_matrix(inverse, self.skew(A), D)
        return W, lambda G: (printed_gradient(G, inverse, W, D, places),)

    def capturable(self, *X: Tensor) -> bool:
        """Whether a CUDA graph can capture :meth:`with_pullback`: if it is one launch."""
        return self._is_one_launch(X[0])

    def _is_one_launch(self, A: Tensor) -> bool:
        state = (self.D, self.inverse, self.point, self.residual)
        # the kernel always refines
        return self.refine and by_kernel(self.n, A, *state)

    def _launch(self, A: Tensor, update: bool) -> tuple[Tensor, Tensor, Tensor]:
        refreshes = self.refreshes if update else None
        state = (self.inverse, self.point, self.residual, self.updates, refreshes)
        return cuda.neumann(state, A, self.D, self._rule())

    def _rule(self) -> tuple[int, float, int]:
        """The order, the tolerance and after how many updates to factorise, 0 for never."""
        tolerance = self.tolerance
        if tolerance is None:
            tolerance = torch.finfo(self.inverse.dtype).eps ** 0.5
        return self.order, tolerance, self.refresh_every or 0

    def _inverse(
        self, A: Tensor, update_: Callable[..., None] | None, compute: Callable[..., Tensor]
    ) -> Tensor:
        """The inverse at A; with a function ``update_`` the buffers are updated to it."""
        dtype = self.inverse.dtype
        if A.dtype != dtype:
            raise TypeError(
                f"expected free entries of the dtype of the map's inverse, {dtype}, got "
                f"{A.dtype}: convert the map, map.to({A.dtype})"
            )
        rule = self._rule()
        state = (self.inverse, self.point, self.residual, self.updates)
        if update_ is None:
            return compute(*state, A.detach(), *rule)
        update_(*state, self.refreshes, A.detach(), *rule)
        return self.inverse

    def right_inverse(self, W: Tensor) -> Tensor:
        """Free entries of at most 1 in modulus that give ``W``; sets D accordingly."""
        check_square(W, self.n, is_complex=False)
        check_orthogonal(W, self.defect(W))
        A, D = small_cayley(W)
        entries = self.skew.right_inverse(A)
        self.D.copy_(D)
        self.refresh_()
        return entries

    def sample(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Sequence[Tensor]:
        """Plane rotations by angles t ~ U[0, π/2), and −1 in the last entries of D."""
        self._start()
        return self.skew.sample(device=device, dtype=dtype)

    def extra_repr(self) -> str:
        """The size, the order, the number of −1 that D starts with and when to refresh."""
        parts = [f"{self.n}, order={self.order}, negative_ones={self.negative_ones}"]
        if self.tolerance is not None:
            parts.append(f"tolerance={self.tolerance}")
        if self.refresh_every is not None:
            parts.append(f"refresh_every={self.refresh_every}")
        if not self.refine:
            parts.append("refine=False")
        if self.rebase_option.rebase is not None:
            parts.append(f"rebase={self.rebase_option.rebase!r}")
        return ", ".join(parts)


def printed_matrix(X: Tensor, A: Tensor, D: Tensor) -> Tensor:
    """The paper's X (I − A) D, as far from orthogonal as X is from an inverse.

    Arguments:
        X: The inverse of I + A, or its approximation, (n, n).
        A: The skew matrix, (n, n).
        D: The diagonal of the scaling matrix, (n).
    """
    return X @ (torch.eye(len(A), device=A.device, dtype=A.dtype) - A) * D


def printed_gradient(G: Tensor, X: Tensor, W: Tensor, D: Tensor, places: Tensor) -> Tensor:
    r"""Gradient with respect to the free entries of A, from that of the matrix :math:`X (I - A) D`.

    .. math:: Q^\top - Q, \qquad Q = X^\top G (D + W^\top)

    Arguments:
        G: The gradient with respect to the matrix, (n, n).
        X: The inverse, or its approximation, (n, n).
        W: The matrix, (n, n).
        D: The diagonal of the scaling matrix, (n).
        places: Where the free entries are in A, read row by row.
    """
    with full_precision(G):
        Q = X.mT @ torch.addmm(G * D, G, W.mT)
    return (Q.mT - Q).flatten().index_select(0, places)


def by_kernel(n: int, x: Tensor, *others: Tensor) -> bool:
    """Whether a CUDA kernel updates the inverse of the (n, n) matrix with free entries x.

    Arguments:
        n: The size of the matrix.
        x: The free entries.
        others: The other tensors that are read or written.
    """
    return x.is_cuda and use_kernel("cuda", cuda.refusal(n, x, *others), x.device, otherwise=None)


def _renew(
    inverse: Tensor,
    point: Tensor,
    residual: Tensor,
    updates: Tensor,
    entries: Tensor,
    order: int,
    tolerance: float,
    refresh_every: int,
) -> tuple[Tensor, Tensor, bool] | None:
    """The inverse at ``entries``, its residual, and whether it is exact; None if it is current."""
    point = point[: len(entries)]
    changed = (point != entries).any()
    # one transfer for both
    last, moved = torch.stack((residual, changed.to(residual.dtype))).tolist()
    # false after refresh_(), or after a change from float32 to float64
    sound = _within(last, tolerance)
    if sound and not moved:
        return None
    n = len(inverse)
    eye = torch.eye(n, device=inverse.device, dtype=inverse.dtype)
    A = skew_symmetric(entries, n)
    M = eye + A
    due = refresh_every > 0 and (int(updates) + 1) % refresh_every == 0
    if sound and not due:
        series = neumann_update(inverse, skew_symmetric(point - entries, n), order)
        residual = torch.linalg.matrix_norm(torch.addmm(eye, series, M, alpha=-1))
        if _within(float(residual), tolerance):
            return series, residual, False
    exact = resolvent(A).contiguous()
    return exact, torch.linalg.matrix_norm(torch.addmm(eye, exact, M, alpha=-1)), True


def _within(residual: float, tolerance: float) -> bool:
    """Whether a residual is no larger than the tolerance; one that is not finite never is."""
    return residual <= tolerance and residual < math.inf


def update_inverse_(
    inverse: Tensor,
    point: Tensor,
    residual: Tensor,
    updates: Tensor,
    refreshes: Tensor,
    entries: Tensor,
    order: int,
    tolerance: float,
    refresh_every: int,
) -> None:
    """Update the buffers to ``entries``."""
    n, rule = len(inverse), (order, tolerance, refresh_every)
    if by_kernel(n, entries, inverse, point, residual):
        cuda.renewed(n, (inverse, point, residual, updates, refreshes), entries, rule)
        return
    renewed = _renew(inverse, point, residual, updates, entries, *rule)
    if renewed is not None:
        inverse.copy_(renewed[0])
        point[: len(entries)].copy_(entries)
        residual.copy_(renewed[1])
        updates.add_(1)
        refreshes.add_(int(renewed[2]))


def next_inverse(
    inverse: Tensor,
    point: Tensor,
    residual: Tensor,
    updates: Tensor,
    entries: Tensor,
    order: int,
    tolerance: float,
    refresh_every: int,
) -> Tensor:
    """The inverse that :func:`update_inverse_` would write to the buffers."""
    n, rule = len(inverse), (order, tolerance, refresh_every)
    if by_kernel(n, entries, inverse, point, residual):
        return cuda.renewed(n, (inverse, point, residual, updates, None), entries, rule)
    renewed = _renew(inverse, point, residual, updates, entries, *rule)
    return inverse.clone() if renewed is None else renewed[0]


# custom operators, since compilers cannot trace code whose course depends on numbers
_update_inverse = torch.library.custom_op(
    "cayley::neumann_update_inverse",
    update_inverse_,
    mutates_args=("inverse", "point", "residual", "updates", "refreshes"),
)
_next_inverse = torch.library.custom_op(
    "cayley::neumann_next_inverse", next_inverse, mutates_args=()
)


@torch.library.custom_op("cayley::inverse_of", mutates_args=())
def _inverse_of(A: Tensor, inverse: Tensor) -> Tensor:
    """``inverse`` as a function of A: its derivative is that of (I + A)⁻¹."""
    return inverse.clone()


@_update_inverse.register_fake
def _(*_: Any) -> None:
    return None


@_next_inverse.register_fake
def _(inverse: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(inverse)


@_inverse_of.register_fake
def _(A: Tensor, inverse: Tensor) -> Tensor:
    return torch.empty_like(inverse)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    # the result itself, so that the gradient can be differentiated again
    ctx.save_for_backward(output)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    (X,) = ctx.saved_tensors
    return -(X.mT @ grad @ X.mT), None


_inverse_of.register_autograd(_differentiate, setup_context=_save)
