"""Scores of outputs, pooled over batches so that every example counts the same."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from cayley.lab.tasks.batch import Batch

__all__ = [
    "IGNORED",
    "Metric",
    "accuracy",
    "bits_per_character",
    "class_loss",
    "crossentropy",
    "mean",
    "mean_squared_error",
    "perplexity",
    "totals",
]

IGNORED = -100


@dataclass(frozen=True)
class Metric:
    """A score of the outputs for a whole split.

    Attributes:
        name: Such as ``"accuracy"``.
        better: Whether higher or lower values are better.
        partial: Returns rows to be pooled, (R, ·), for an output and its batch, without waiting for
            the device.
        pool: Returns the value for the rows of all batches; None if nothing could be scored.
    """

    name: str
    better: Literal["lower", "higher"]
    partial: Callable[[Tensor, Batch], Tensor]
    pool: Callable[[Tensor], float | None]


def mean(rows: Tensor) -> float:
    """The sum of the first column divided by that of the second.

    Example:
        >>> mean(torch.tensor([[1.0, 1.0], [2.0, 5.0]]))
        0.5
    """
    total, weight = rows.sum(0).tolist()
    return total / weight


def totals(values: Tensor, wanted: Tensor | None = None) -> Tensor:
    """One row: the sum of the values that count, and their number, float64, (1, 2)."""
    if wanted is None:
        wanted = torch.ones_like(values, dtype=torch.bool)
    # where, not a product: a NaN that does not count must not spread
    sum_ = torch.where(wanted, values, 0).sum(dtype=torch.float64)
    return torch.stack((sum_, wanted.sum(dtype=torch.float64))).unsqueeze(0)


def class_loss(output: Tensor, target: Tensor) -> Tensor:
    """Cross entropy in nats, mean over the targets that count.

    Arguments:
        output: Logits, (..., p).
        target: Class numbers, or −100, (...).

    Example:
        >>> class_loss(torch.zeros(2, 3, 8), torch.tensor([[1, 2, 3], [4, 5, -100]]))
        tensor(2.0794)
    """
    return cross_entropy(output.flatten(0, -2), target.flatten(), ignore_index=IGNORED)


def _entropies(output: Tensor, batch: Batch) -> Tensor:
    target = batch.target.flatten()
    losses = cross_entropy(output.flatten(0, -2), target, ignore_index=IGNORED, reduction="none")
    return totals(losses, target != IGNORED)


def _hits(output: Tensor, batch: Batch) -> Tensor:
    return totals((output.argmax(-1) == batch.target).double(), batch.target != IGNORED)


def _squares(output: Tensor, batch: Batch) -> Tensor:
    return totals((output - batch.target).square())


mean_squared_error = Metric("mse", "lower", _squares, mean)
crossentropy = Metric("cross_entropy", "lower", _entropies, mean)
accuracy = Metric("accuracy", "higher", _hits, mean)
perplexity = Metric("perplexity", "lower", _entropies, lambda rows: math.exp(mean(rows)))
bits_per_character = Metric("bpc", "lower", _entropies, lambda rows: mean(rows) / math.log(2))
