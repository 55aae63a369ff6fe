"""Skew-symmetric and skew-Hermitian matrices from their free entries."""

import functools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cayley.checks import is_integer
from cayley.initializers import rotation_angles
from cayley.parametrizations.parametrization import (
    Parametrization,
    check_square,
    rounding_tolerance,
)
from cayley.tracing import computes_now

__all__ = [
    "INITS",
    "Skew",
    "SkewHermitian",
    "complex_positions",
    "diagonal_entries",
    "initial_entries",
    "last_diagonal",
    "positions",
    "skew_at",
    "skew_blocks",
    "skew_hermitian",
    "skew_hermitian_at",
    "skew_repr",
    "skew_symmetric",
]


INITS = ("blocks", "circle", "uniform", "zero")


def diagonals(n: int, first: int, last: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows and columns of the entries on the diagonals ``first`` to ``last``, one after another.

    Example:
        >>> diagonals(3, 1, 2, torch.device("cpu"))
        (tensor([0, 1, 0]), tensor([1, 2, 2]))
    """
    offset = torch.arange(first, last + 1, device=device)
    length = n - offset
    # with the size of the result given, a GPU need not be waited for
    total = diagonal_entries(n, first, last)
    start = length.cumsum(0) - length
    row = torch.arange(total, device=device) - start.repeat_interleave(length, output_size=total)
    return row, row + offset.repeat_interleave(length, output_size=total)


def diagonal_entries(n: int, first: int, last: int) -> int:
    """How many entries the diagonals ``first`` to ``last`` of an (n, n) matrix have."""
    return sum(n - offset for offset in range(first, last + 1))


def positions(n: int, bandwidth: int | None, like: Tensor) -> Tensor:
    """The positions of the entries above the diagonal in a flattened matrix, on a tensor's device.

    Example:
        >>> positions(3, None, torch.zeros(1))
        tensor([1, 5, 2])
    """
    return _found(_above, n, bandwidth, like)


def complex_positions(n: int, bandwidth: int | None, like: Tensor) -> Tensor:
    """The same in a flattened complex matrix of pairs [Re, Im].

    First the real parts above the diagonal, then the imaginary parts on and above it.

    Example:
        >>> complex_positions(2, None, torch.zeros(1))
        tensor([2, 1, 7, 3])
    """
    return _found(_complex_above, n, bandwidth, like)


Finder = Callable[[int, int, torch.device], Tensor]


def _above(n: int, last: int, device: torch.device) -> Tensor:
    row, column = diagonals(n, 1, last, device)
    return row * n + column


def _complex_above(n: int, last: int, device: torch.device) -> Tensor:
    row, column = diagonals(n, 0, last, device)
    real = 2 * (row * n + column)
    # the main diagonal comes first
    return torch.cat((real[n:], real + 1))


def _found(find: Finder, n: int, bandwidth: int | None, like: Tensor) -> Tensor:
    last = last_diagonal(n, bandwidth)
    if computes_now(like):
        return _kept(find, n, last, like.device)
    return find(n, last, like.device)


@functools.lru_cache(maxsize=16)
def _kept(find: Finder, n: int, last: int, device: torch.device) -> Tensor:
    # Not an inference tensor, which later calls that record gradients could not use; and copied
    # from the CPU, so that it is ready for every stream.
    with torch.inference_mode(False):
        return find(n, last, torch.device("cpu")).to(device)


def skew_blocks(s: Tensor, n: int, bandwidth: int | None = None) -> Tensor:
    """The free entries of a skew-symmetric (n, n) matrix of blocks [[0, s], [−s, 0]].

    Example:
        >>> skew_symmetric(skew_blocks(torch.tensor([2.0]), 3), 3)
        tensor([[ 0.,  2.,  0.],
                [-2.,  0.,  0.],
                [ 0.,  0.,  0.]])
    """
    x = s.new_zeros(diagonal_entries(n, 1, last_diagonal(n, bandwidth)))
    # on the diagonal next to the main one, every second entry begins a block
    x[: n - 1 : 2] = s
    return x


def initial_entries(
    init: str,
    n: int,
    bandwidth: int | None = None,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""The free entries of a skew-symmetric (n, n) matrix A to start with.

    ``"blocks"`` and ``"circle"`` are blocks [[0, s], [−s, 0]] with :math:`s = \tan(t/2)`, whose
    Cayley transform has the eigenvalues :math:`e^{\pm it}`: on the right half of the circle,
    :math:`t \sim U[0, \pi/2)`, or on all of it, :math:`t \sim U[-\pi, \pi)`. ``"uniform"`` are
    entries :math:`U[-1/\sqrt n, 1/\sqrt n)`, and ``"zero"`` is 0, whose transform is the identity.

    Note:
        The reference says that other initial values were worse, but not which. ``"circle"`` is used
        in scuRNN's program for the adding problem. With ``"uniform"`` the norm of A is about 1 for
        every n, and the eigenvalues of its transform are spread over the right half of the circle.

    References:
        Orthogonal Recurrent Neural Networks with Scaled Cayley Transform, Helfrich, Willmott, Ye,
        2018, section 4.2.

    Arguments:
        init: ``"blocks"``, ``"circle"``, ``"uniform"`` or ``"zero"``.
        n: The size of A.
        bandwidth: How many diagonals above the main one may be non-zero; None for all.
        device: The device of the entries.
        dtype: The dtype of the entries.

    Example:
        >>> float(initial_entries("uniform", 4).abs().max()) <= 0.5
        True
        >>> initial_entries("zero", 3)
        tensor([0., 0., 0.])
    """
    entries = torch.zeros(
        diagonal_entries(n, 1, last_diagonal(n, bandwidth)), device=device, dtype=dtype
    )
    if init == "zero":
        return entries
    if init == "uniform":
        return entries.uniform_(-(n**-0.5), n**-0.5)
    t = rotation_angles(n, device=device, dtype=dtype)
    if init == "circle":
        t = 4 * t - math.pi
    return skew_blocks((t / 2).tan(), n, bandwidth)


def skew_symmetric(x: Tensor, n: int, bandwidth: int | None = None) -> Tensor:
    r"""Skew-symmetric matrix :math:`A = -A^\top` from the entries above its diagonal.

    Arguments:
        x: The free entries, one diagonal after another, beginning next to the main diagonal;
            (n(n−1)/2) numbers, or fewer with a bandwidth.
        n: The size of A.
        bandwidth: How many diagonals above the main one may be non-zero; None for all.

    Returns:
        A, (n, n).

    Example:
        >>> skew_symmetric(torch.tensor([1.0, 2.0, 3.0]), 3)
        tensor([[ 0.,  1.,  3.],
                [-1.,  0.,  2.],
                [-3., -2.,  0.]])
    """
    return skew_at(x, n, positions(n, bandwidth, x))


def skew_at(x: Tensor, n: int, places: Tensor) -> Tensor:
    """The skew-symmetric (n, n) matrix with entries x at places above its diagonal.

    Example:
        >>> skew_at(torch.tensor([5.0]), 2, torch.tensor([1]))
        tensor([[ 0.,  5.],
                [-5.,  0.]])
    """
    U = x.new_zeros(n * n).scatter(0, places, x).view(n, n)
    return U - U.mT


def skew_hermitian(x: Tensor, n: int, bandwidth: int | None = None) -> Tensor:
    r"""Skew-Hermitian matrix :math:`A = -A^*` from real numbers.

    Arguments:
        x: The free entries: real parts above the diagonal, ordered as in :func:`skew_symmetric`,
            then imaginary parts on and above it; n² numbers, or fewer with a bandwidth.
        n: The size of A.
        bandwidth: How many diagonals above the main one may be non-zero; None for all.

    Returns:
        A, complex, (n, n).

    Example:
        >>> skew_hermitian(torch.tensor([1.0, 2.0, 3.0, 4.0]), 2)
        tensor([[ 0.+2.j,  1.+4.j],
                [-1.+4.j,  0.+3.j]])
    """
    return skew_hermitian_at(x, n, complex_positions(n, bandwidth, x))


def skew_hermitian_at(x: Tensor, n: int, places: Tensor) -> Tensor:
    """The skew-Hermitian (n, n) matrix with entries x at places of :func:`complex_positions`.

    Example:
        >>> skew_hermitian_at(torch.tensor([2.0]), 1, torch.tensor([1]))
        tensor([[0.+2.j]])
    """
    pairs = x.new_zeros(2 * n * n).scatter(0, places, x).view(n, n, 2)
    U = torch.view_as_complex(pairs)
    return U - U.triu(1).mH


class Banded(Parametrization):
    """Common base of skew-symmetric and skew-Hermitian matrices: bandwidth, start and defect."""

    def __init__(self, n: int, *, bandwidth: int | None = None, init: str = "blocks") -> None:
        super().__init__(n)
        if bandwidth is not None and (not is_integer(bandwidth) or bandwidth < 1):
            raise ValueError(f"expected an int bandwidth of at least 1, got {bandwidth!r}")
        if init not in INITS:
            raise ValueError(f"expected init to be one of {INITS}, got {init!r}")
        self.bandwidth = bandwidth
        self.init = init

    @property
    def onto(self) -> bool:
        """Whether the band is the whole matrix."""
        return last_diagonal(self.n, self.bandwidth) == self.n - 1

    def project(self, W: Tensor) -> Tensor:
        """The skew part of W, inside the band."""
        A = (W - W.mH) / 2
        last = last_diagonal(self.n, self.bandwidth)
        return A.triu(-last).tril(last)

    def defect(self, W: Tensor) -> Tensor:
        """Distance from the skew matrices, ‖A + A*‖_F."""
        return torch.linalg.matrix_norm(W.detach() + W.detach().mH)

    def extra_repr(self) -> str:
        """The size, and bandwidth and initial values if they are not the defaults."""
        return f"{self.n}" + skew_repr(self)


class Skew(Banded):
    r"""Skew-symmetric matrices :math:`A = -A^\top`, by their entries above the diagonal.

    Arguments:
        n: The size of A.
        bandwidth: How many diagonals above the main one may be non-zero; None for all.
        init: What ``sample`` draws, see :func:`initial_entries`.

    Shapes:
        A's free entries (n(n−1)/2) ↦ A (n, n).

    Example:
        >>> skew = Skew(4)
        >>> A = skew(*skew.sample())
        >>> bool((A == -A.mT).all())
        True
    """

    names = ("A",)

    def forward(self, A: Tensor) -> Tensor:
        """The matrix with the free entries ``A``."""
        return skew_symmetric(A, self.n, self.bandwidth)

    def right_inverse(self, W: Tensor) -> Tensor:
        """The free entries of a skew-symmetric matrix."""
        check_square(W, self.n, is_complex=False)
        check_skew(W, self.defect(W), self.n, self.bandwidth)
        return self.entries(W)

    def entries(self, W: Tensor) -> Tensor:
        """Those entries of a matrix that are free in a skew-symmetric one."""
        return W.flatten().index_select(0, positions(self.n, self.bandwidth, W))

    def sample(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Sequence[Tensor]:
        """As :func:`initial_entries` draws them."""
        options = {"device": device, "dtype": dtype}
        return (initial_entries(self.init, self.n, self.bandwidth, **options),)


class SkewHermitian(Banded):
    r"""Skew-Hermitian matrices :math:`A = -A^*`, by n² real numbers.

    Arguments:
        n: The size of A.
        bandwidth: How many diagonals above the main one may be non-zero; None for all.
        init: What ``sample`` draws, see :func:`initial_entries`.

    Shapes:
        A's free entries (n²) ↦ A complex (n, n).

    Example:
        >>> skew = SkewHermitian(4)
        >>> A = skew(*skew.sample())
        >>> bool((A == -A.mH).all())
        True
    """

    names = ("A",)
    is_complex = True

    def forward(self, A: Tensor) -> Tensor:
        """The matrix with the free entries ``A``."""
        return skew_hermitian(A, self.n, self.bandwidth)

    def right_inverse(self, W: Tensor) -> Tensor:
        """The free entries of a skew-Hermitian matrix."""
        check_square(W, self.n, is_complex=True)
        check_skew(W, self.defect(W), self.n, self.bandwidth)
        pairs = torch.view_as_real(W.to(W.dtype.to_complex()).resolve_conj().contiguous())
        return pairs.flatten().index_select(0, complex_positions(self.n, self.bandwidth, W))

    def sample(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Sequence[Tensor]:
        """As :func:`initial_entries` draws real parts, and no imaginary parts."""
        options = {"device": device, "dtype": dtype}
        real = initial_entries(self.init, self.n, self.bandwidth, **options)
        last = last_diagonal(self.n, self.bandwidth)
        return (torch.cat((real, real.new_zeros(diagonal_entries(self.n, 0, last)))),)


def last_diagonal(n: int, bandwidth: int | None) -> int:
    """The number of the last diagonal above the main one that may be non-zero."""
    return n - 1 if bandwidth is None else min(bandwidth, n - 1)


def skew_repr(skew: Banded) -> str:
    """The settings that are not defaults, as ``repr`` shows them."""
    bandwidth = "" if skew.bandwidth is None else f", bandwidth={skew.bandwidth}"
    return bandwidth + ("" if skew.init == "blocks" else f", init={skew.init!r}")


def check_skew(A: Tensor, defect: Tensor, n: int, bandwidth: int | None) -> None:
    """Raise unless A is skew and vanishes outside its band, up to rounding."""
    tolerance = rounding_tolerance(A) / n**0.5 * (torch.linalg.matrix_norm(A) + 1)
    if not defect <= tolerance:
        raise ValueError(f"expected a skew matrix, A* = −A, got ‖A + A*‖ = {float(defect):.3g}")
    outside = torch.linalg.matrix_norm(A.triu(last_diagonal(n, bandwidth) + 1))
    if not outside <= tolerance:
        raise ValueError(
            f"expected zeros beyond {bandwidth} diagonals, got a norm of {float(outside):.3g} "
            "there: use bandwidth=None for a full matrix"
        )
