"""Orthogonal matrices by the scaled Cayley transform."""

from collections.abc import Sequence

import torch
from torch import Tensor

from cayley.cache import Cache
from cayley.checks import is_integer
from cayley.kernels.cpu import cayley as cpu
from cayley.kernels.cuda import cayley as cuda
from cayley.kernels.cuda.replay import Replay
from cayley.parametrizations.formation import (
    formed_under_transforms,
    kernel_for,
    of_inverse,
    pulled_back,
)
from cayley.parametrizations.parametrization import (
    Parametrization,
    Pullback,
    check_orthogonal,
    check_square,
    full_precision,
)
from cayley.parametrizations.rebase_option import Rebase, RebaseOption
from cayley.parametrizations.resolvent import resolvent, resolvent_under_transforms
from cayley.parametrizations.signature import small_cayley
from cayley.parametrizations.skew import (
    Skew,
    last_diagonal,
    positions,
    skew_at,
    skew_repr,
)
from cayley.tracing import computes_now, has_tangent, transformed

__all__ = [
    "ScaledCayley",
    "count_signs",
    "differentiated",
    "place_signs_",
    "scaled_cayley",
]


def scaled_cayley(A: Tensor, D: Tensor) -> Tensor:
    r"""Scaled Cayley transform of a skew-symmetric (skew-Hermitian) matrix.

    .. math:: W = (I + A)^{-1} (I - A) D = (2 X - I) D, \qquad X = (I + A)^{-1}

    I + A is factorised once: the backward pass uses :math:`X` too, and takes two products with
    :math:`G = \partial L / \partial W`,

    .. math::
        \frac{\partial L}{\partial A} = -X^* (2 G D^*) X^* = -(I + A)^{-*} G (D^* + W^*),

    the closed form of the reference (its :math:`Q^\top - Q` is this gradient with respect to the
    entries above the diagonal, which move with those below).

    Note:
        The inverse of I + A is well conditioned, since :math:`\|X\|_2 \le 1` for skew A, and
        :func:`~cayley.parametrizations.polar.refine` removes rounding errors: with entries around
        0.5 and n = 1030, a solve in float32 is 40 times as far from orthogonal. No step waits for
        the GPU. Non-finite A gives non-finite W, not an error.

    References:
        Orthogonal Recurrent Neural Networks with Scaled Cayley Transform, Helfrich, Willmott, Ye,
        2018, theorem 3.2.

    Arguments:
        A: A skew matrix, real or complex, (n, n).
        D: The diagonal of the scaling matrix, numbers of modulus one, (n).

    Returns:
        W, orthogonal (unitary), (n, n).

    Example:
        >>> A = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
        >>> scaled_cayley(A, D=torch.ones(2))
        tensor([[ 0., -1.],
                [ 1.,  0.]])
    """
    with full_precision(A, D):
        if transformed(A):
            return of_inverse(resolvent_under_transforms(A), D)
        eye = torch.eye(A.shape[-1], device=A.device, dtype=A.dtype)
        return of_inverse(torch.linalg.inv_ex(eye + A).inverse, D)


class ScaledCayley(Parametrization):
    r"""Orthogonal matrices :math:`W = (I + A)^{-1}(I - A) D`.

    A is skew-symmetric and trained; D is a diagonal of ±1 and fixed. For *every* orthogonal W there
    is a D such that all :math:`|a_{ij}| \le 1`; ``right_inverse`` finds it.

    References:
        Orthogonal Recurrent Neural Networks with Scaled Cayley Transform, Helfrich, Willmott, Ye,
        2018, section 3.

    Arguments:
        n: The size of W.
        negative_ones: How many of D's entries are −1: the last ones. None for n // 2, or for none
            of them with ``rebase``.
        bandwidth: How many diagonals of A above the main one may be non-zero; None for all.
        init: What A starts with, ``"blocks"``, ``"circle"``, ``"uniform"`` or ``"zero"``: see
            :func:`~cayley.parametrizations.skew.initial_entries`.
        rebase: ``"auto"``, or a number of steps, to keep the entries of A at most 1 in modulus:
            D is chosen for the initial W here, and again in training by
            :func:`cayley.optim.attach_rebase`, which a program calls once it has an optimizer.
            None to keep D.

    Shapes:
        A's free entries (n(n−1)/2) ↦ W (n, n).

    Example:
        >>> cayley = ScaledCayley(4, negative_ones=1)
        >>> W = cayley(*cayley.sample())
        >>> bool(cayley.defect(W) < 1e-6), round(float(W.det()))
        (True, -1)
    """

    names = ("A",)
    D: Tensor

    def __init__(
        self,
        n: int,
        *,
        negative_ones: int | None = None,
        bandwidth: int | None = None,
        init: str = "blocks",
        rebase: Rebase | None = None,
    ) -> None:
        super().__init__(n)
        self.negative_ones = count_signs(n, negative_ones, rebased=rebase is not None)
        self.rebase_option = RebaseOption(rebase)
        self.skew = Skew(n, bandwidth=bandwidth, init=init)
        self.register_buffer("D", torch.empty(n))
        place_signs_(self.D, self.negative_ones)
        self._replay: Cache[Replay] = Cache()
        if rebase is not None and not self.onto:
            raise ValueError(
                f"expected bandwidth=None with rebase={rebase!r}, got {bandwidth}: another D needs "
                "entries outside of the band"
            )

    @property
    def onto(self) -> bool:
        """Whether A may be any skew matrix."""
        return self.skew.onto

    @property
    def awaits_rebase(self) -> bool:
        """Whether the option ``rebase`` was given, but no optimizer does what it says."""
        return self.rebase_option.is_unmet

    def forward(self, A: Tensor) -> Tensor:
        """The orthogonal matrix of the free entries ``A``."""
        # where no derivative is needed: bitwise the same matrix as :meth:`with_pullback` gives
        if computes_now(A) and not differentiated(A):
            last = last_diagonal(self.n, self.skew.bandwidth)
            kernel = kernel_for(self.n, A, self.D)
            if kernel == "cpu":
                return cpu.cayley(A, self.D, last)[0]
            if kernel == "cuda":
                return cuda.cayley(A, self.D, last)[0]
        if transformed(A):
            return formed_under_transforms(A, self.D, self.n, self.skew.bandwidth)
        return scaled_cayley(self.skew(A), self.D)

    def with_pullback(self, *X: Tensor, update: bool = False) -> tuple[Tensor, Pullback]:
        """The matrix, detached, and its pullback in closed form."""
        (A,) = X
        n, D, bandwidth = self.n, self.D, self.skew.bandwidth
        last, kernel = last_diagonal(n, bandwidth), kernel_for(n, A, D)
        if kernel == "cpu":
            D = D.clone()
            W, inverse = cpu.cayley(A, D, last)
            return W, lambda G: (cpu.cayley_backward(G, inverse, D, last),)
        if kernel == "cuda":
            W, inverse, D = cuda.cayley(A, D, last)
            return W, lambda G: (cuda.cayley_backward(G, inverse, D, last),)
        places = positions(n, bandwidth, A)
        with torch.no_grad(), full_precision(A, D):
            if A.is_cuda:
                replay = self._replay.value = self._replay.value or Replay(_stacked)
                (rows,) = replay((A, D), (places,))
                W, inverse, D = rows[:n], rows[n:-1], rows[-1]
            else:
                D, inverse = D.clone(), resolvent(skew_at(A, n, places))
                W = of_inverse(inverse, D)

        return W, lambda G: (pulled_back(G, inverse, D, places),)

    def capturable(self, *X: Tensor) -> bool:
        """Whether a CUDA graph can capture :meth:`with_pullback`, which needs no host."""
        return X[0].is_cuda

    def right_inverse(self, W: Tensor) -> Tensor:
        """Free entries of at most 1 in modulus that give ``W``; sets D accordingly."""
        check_square(W, self.n, is_complex=False)
        check_orthogonal(W, self.defect(W))
        A, D = small_cayley(W)
        entries = self.skew.right_inverse(A)
        self.D.copy_(D)
        return entries

    def sample(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Sequence[Tensor]:
        """A as ``init`` says, and −1 in the last entries of D; with ``rebase``, a small A."""
        place_signs_(self.D, self.negative_ones)
        (A,) = self.skew.sample(device=device, dtype=dtype)
        if self.rebase_option.rebase is None or A.is_meta or (A.abs() <= 1).all():
            return (A,)
        W = scaled_cayley(self.skew(A.to(torch.float64)), self.D.to(A.device, torch.float64))
        small, D = small_cayley(W)
        self.D.copy_(D)
        return (self.skew.entries(small).to(A.dtype),)

    def extra_repr(self) -> str:
        """The size, the number of −1 that D starts with, and settings that are not defaults."""
        text = f"{self.n}, negative_ones={self.negative_ones}{skew_repr(self.skew)}"
        rebase = self.rebase_option.rebase
        return text if rebase is None else f"{text}, rebase={rebase!r}"


def _stacked(A: Tensor, D: Tensor, places: Tensor) -> tuple[Tensor]:
    """W, (I + A)⁻¹ and D, stacked: on a GPU, one copy takes a third of the time of three."""
    X = resolvent(skew_at(A, len(D), places))
    return (torch.cat((of_inverse(X, D), X, D[None])),)


def differentiated(A: Tensor) -> bool:
    """Whether A is differentiated, in backward or in forward mode."""
    return (torch.is_grad_enabled() and A.requires_grad) or has_tangent(A)


def count_signs(n: int, negative_ones: int | None, *, rebased: bool = False) -> int:
    """How many of n signs are −1: ``negative_ones``, by default half of them.

    A D that is chosen again starts without: −1 is there to spare A large entries, which the start
    does not have, and takes W further from the identity.
    """
    count = negative_ones
    if count is None:
        count = 0 if rebased else n // 2
    if not is_integer(count) or not 0 <= count <= n:
        raise ValueError(f"expected an int negative_ones from 0 to n = {n}, got {negative_ones!r}")
    return count


def place_signs_(D: Tensor, negative_ones: int) -> None:
    """Fill D with +1 and, in its last entries, −1."""
    D.fill_(1.0)
    D[len(D) - negative_ones :] = -1.0
