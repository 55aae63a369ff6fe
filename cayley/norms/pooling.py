"""Statistics over the examples of all processes of a data-parallel model."""

import torch
from torch import Tensor, nn

from cayley.norms.batch import PopulationStatistics
from cayley.processes import gather, world_size

__all__ = ["Pool", "find_pool", "synchronize"]


def synchronize(model: nn.Module, on: bool = True) -> None:
    """Compute statistics over the batch over all processes of ``torch.distributed``.

    This applies to :class:`~cayley.LSTM` with ``norm="batch"`` or ``over="batch"`` and to
    :class:`~cayley.AssortedTimeNorm` over the batch, in training: ``DistributedDataParallel`` then
    trains what, up to rounding, one process would train with the examples of all. Other layers
    need nothing, since their statistics are those of one example at a time.

    Every time step waits for an exchange, and the recurrence runs as a loop of torch operations.
    Sequences must have the same number of steps in all processes, and cannot be packed.

    Arguments:
        model: The layer, or a model that contains it.
        on: False to let every process use its own statistics again.

    Example:
        >>> import cayley
        >>> synchronize(cayley.LSTM(2, 8, norm="batch"))
    """
    for module in model.modules():
        if isinstance(module, PopulationStatistics):
            module.synchronized = on


class Pool:
    r"""Combines the means and variances of all processes.

    .. math::
        \mu = \frac{1}{n} \sum_r n_r \mu_r, \qquad
        \sigma^2 = \frac{1}{n} \sum_r n_r \bigl(\sigma_r^2 + (\mu_r - \mu)^2\bigr)

    Arguments:
        x: The tensor of the statistics, (T, B, ·); T must be the same in all processes.

    Attributes:
        total: The number n of examples of all processes.

    Example:
        >>> Pool(torch.zeros(3, 5, 1)).total
        5
    """

    def __init__(self, x: Tensor) -> None:
        T, B, *_ = x.shape
        sizes = gather(torch.tensor([T, B], device=x.device)).tolist()
        steps, self._examples = ([*column] for column in zip(*sizes, strict=True))
        if len({*steps}) > 1:
            raise ValueError(
                "statistics over the batch of all processes: expected sequences of the same number "
                f"of steps in each, got {steps}: pad them, or call synchronize(model, False)"
            )
        self.total = sum(self._examples)

    def statistics(self, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and population variance over all examples, from those of this process."""
        means, variances = gather(torch.stack((m, v))).unbind(1)
        shares = m.new_tensor(self._examples).div_(max(1, self.total))
        shares = shares.view(-1, *(1,) * m.dim())
        mean = (shares * means).sum(0)
        return mean, (shares * (variances + (means - mean).square())).sum(0)

    def first(self, value: Tensor) -> Tensor:
        """The value of the first process that has examples, without a gradient."""
        found = gather(value.detach())
        return found[next((rank for rank, B in enumerate(self._examples) if B), 0)]


def find_pool(
    population: PopulationStatistics | None, x: Tensor, batch_sizes: Tensor | None
) -> Pool | None:
    """The pool for the statistics of a call; None if each process uses its own.

    Arguments:
        population: Has the setting of :func:`synchronize`.
        x: The tensor of the statistics, (T, B, ·).
        batch_sizes: The sizes of a packed sequence, which is refused.
    """
    if population is None or not population.synchronized or world_size() == 1:
        return None
    if batch_sizes is not None:
        raise NotImplementedError(
            "statistics over the batch of all processes: expected a tensor, got a packed sequence, "
            "whose steps other processes may not have: pad it, or call synchronize(model, False)"
        )
    return Pool(x)
