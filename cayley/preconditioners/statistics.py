"""Mean and variance of the rows that a weight multiplies: of a batch, pooled, and running."""

from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from cayley.tracing import no_autocast

__all__ = ["RowStatistics", "RunningStatistics", "Statistics"]


class RowStatistics(Protocol):
    """The statistics of the rows of one site that a preconditioner reads."""

    @property
    def n(self) -> Tensor:
        """The number of rows, (); 0 if there are none."""
        ...

    @property
    def mean(self) -> Tensor:
        """μ, (F)."""
        ...

    @property
    def variance(self) -> Tensor:
        """σ², with denominator n, (F)."""
        ...

    @property
    def second_moment(self) -> Tensor:
        """The mean square, (F)."""
        ...


class Statistics(NamedTuple):
    r"""Number, mean and summed squared deviations of rows.

    Attributes:
        n: The number of rows, ().
        mean: μ, (F).
        M2: :math:`\sum_i (h_i - \mu)^2`, (F).

    Example:
        >>> rows = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
        >>> statistics = Statistics.of(rows)
        >>> statistics.mean, statistics.variance
        (tensor([2., 5.]), tensor([1., 0.]))
        >>> Statistics.of(rows[:1]).merge(Statistics.of(rows[1:])).variance
        tensor([1., 0.])
    """

    n: Tensor
    mean: Tensor
    M2: Tensor

    @classmethod
    def of(
        cls, values: Tensor, reached: Tensor | None = None, *, dtype: torch.dtype = torch.float32
    ) -> "Statistics":
        """Statistics of the rows of a tensor.

        They are taken in two passes, in ``dtype`` or the values' own precision if that is higher:
        the difference of mean square and squared mean has no correct digit if the mean is large,
        and a variance in half precision overflows. If any row is not finite, none counts.

        Arguments:
            values: Rows of F features, (..., F), or a sparse matrix (N, F).
            reached: Which rows count, (...); None for all.
            dtype: The minimum precision.
        """
        dtype = torch.promote_types(values.dtype, dtype)
        values = values.detach()
        if values.layout != torch.strided:
            return _of_sparse(values, reached, dtype)
        x = values.to(dtype).reshape(-1, values.shape[-1])
        weight = x.new_ones(len(x))
        if reached is not None and not (x.device.type == "cpu" and reached.all()):
            weight = reached.reshape(-1).to(dtype)
            # masked first: the squares of the rows left out may overflow
            x = x.where(reached.reshape(-1, 1), 0)
        n = weight.sum()
        with no_autocast(x.device):
            mean = weight @ x / n.clamp_min(1)
            d = x - mean
            # 0 except for the rounding of the mean
            error = weight @ d / n.clamp_min(1)
            M2 = weight @ d.square_() - n * error.square()
        return cls(n, mean + error, M2)._finite()

    @classmethod
    def none(
        cls, features: int, *, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> "Statistics":
        """Statistics of no rows."""
        zeros = torch.zeros(features, device=device, dtype=dtype)
        return cls(zeros.new_zeros(()), zeros, zeros)

    @property
    def variance(self) -> Tensor:
        """σ², with denominator n, (F)."""
        return self.M2 / self.n.clamp_min(1)

    @property
    def second_moment(self) -> Tensor:
        """The mean square, (F)."""
        return self.variance + self.mean.square()

    def merge(self, other: "Statistics") -> "Statistics":
        r"""Statistics of the rows of both.

        .. math::
            \mu = \mu_a + \delta\, n_b / n, \qquad
            M_2 = M_{2a} + M_{2b} + \delta^2 n_a n_b / n, \qquad \delta = \mu_b - \mu_a

        References:
            Updating Formulae and a Pairwise Algorithm for Computing Sample Variances, Chan, Golub,
            LeVeque, 1979.
        """
        n = self.n + other.n
        share = other.n / n.clamp_min(1)
        delta = other.mean - self.mean
        return Statistics(
            n,
            self.mean + delta * share,
            self.M2 + other.M2 + delta.square() * (self.n * share),
        )

    def where(self, kept: Tensor) -> "Statistics":
        """These, or those of no rows if ``kept``, (), is false."""
        return Statistics(*(v.where(kept, 0) for v in self))

    def _finite(self) -> "Statistics":
        # the sum of squares is inf or NaN wherever a mean is
        return self.where(self.M2.isfinite().all())


def _of_sparse(values: Tensor, reached: Tensor | None, dtype: torch.dtype) -> Statistics:
    """Statistics of the rows of a sparse matrix, without making it dense."""
    matrix = values.to_sparse_coo().coalesce()
    (row, column), x = matrix.indices(), matrix.values().to(dtype)
    N, F = matrix.shape
    if reached is None:
        n, weight = x.new_full((), N), torch.ones_like(x)
    else:
        n, weight = reached.sum().to(dtype), reached[row].to(dtype)
    total = x.new_zeros(F).index_add(0, column, x * weight)
    entries = x.new_zeros(F).index_add(0, column, weight)
    mean = total / n.clamp_min(1)
    M2 = x.new_zeros(F).index_add(0, column, (x - mean[column]).square() * weight)
    return Statistics(n, mean, M2 + (n - entries) * mean.square())._finite()


class RunningStatistics:
    r"""Exponential average of the statistics of batches.

    .. math:: \mu \leftarrow \rho \mu + (1 - \rho) \mu_H, \qquad
        \sigma^2 \leftarrow \rho \sigma^2 + (1 - \rho) \sigma_H^2

    Note:
        Algorithm 3 of the reference starts at μ = 0, σ² = 1 (``start="identity"``): a feature of
        variance v is scaled correctly only once :math:`\rho^t < v`. With
        ``start="batch"`` the averages are divided by :math:`1 - \rho^t`, and the first batch
        counts in full.

    References:
        Normalization Techniques for Sequential and Graphical Data (dissertation), Pospisil, 2023,
        Algorithm 3.

    Arguments:
        features: The number F of features.
        momentum: ρ.
        start: ``"batch"`` or ``"identity"``.
        device, dtype: The device and dtype of the averages.

    Attributes:
        n: The number of rows of the last batch, ().

    Example:
        >>> running = RunningStatistics(1, 0.75, "identity")
        >>> running.update(Statistics.of(torch.tensor([[1.0], [3.0]])))
        >>> running.mean, running.variance
        (tensor([0.5000]), tensor([1.]))
    """

    def __init__(
        self,
        features: int,
        momentum: float,
        start: Literal["batch", "identity"],
        *,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.momentum = momentum
        fill = 1.0 if start == "identity" else 0.0
        # the last two rows are σ² and the mean square
        self.averages = torch.full((3, features), fill, device=device, dtype=dtype)
        self.averages[0] = 0
        self.weight = self.averages.new_full((), fill)
        self.n = self.averages.new_zeros(())

    @property
    def mean(self) -> Tensor:
        """μ, (F)."""
        return self._corrected()[0]

    @property
    def variance(self) -> Tensor:
        """σ², (F)."""
        return self._corrected()[1]

    @property
    def second_moment(self) -> Tensor:
        """The mean square, (F)."""
        return self._corrected()[2]

    def _corrected(self) -> Tensor:
        return self.averages / self.weight.where(self.weight > 0, 1)

    def move(self, device: torch.device, dtype: torch.dtype) -> None:
        """Go on with the averages on a device, in a dtype."""
        self.averages, self.weight, self.n = (
            v.to(device, dtype) for v in (self.averages, self.weight, self.n)
        )

    def update(self, batch: Statistics, counts: Tensor | bool = True) -> None:
        """Add a batch, unless it has no rows or ``counts`` is false."""
        new = torch.stack((batch.mean, batch.variance, batch.second_moment)).to(self.averages)
        share = (1 - self.momentum) * ((batch.n > 0) & counts).to(self.averages)
        self.averages = self.averages + share * (new - self.averages)
        self.weight = self.weight + share * (1 - self.weight)
        # as long as there is no average, there are no rows to use it for
        self.n = batch.n * (self.weight > 0)
