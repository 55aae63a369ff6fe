"""Scores of a predictor over a whole split."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cayley.lab.errors import RecipeError
from cayley.lab.tasks.batch import Batch, Split
from cayley.lab.tasks.examples import ExampleTask
from cayley.lab.tasks.metrics import Metric
from cayley.lab.tasks.prefetching import prefetch
from cayley.lab.tasks.task import Task

__all__ = ["Predict", "as_score", "batches_to_score", "score_split"]

Predict = Callable[[Batch, Any], tuple[Tensor, Any]]


@torch.no_grad()
def score_split(
    task: Task,
    predict: Predict,
    split: Split,
    B: int,
    *,
    seed: int = 0,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    metrics: Sequence[Metric] | None = None,
    rank: int = 0,
    processes: int = 1,
) -> dict[str, float]:
    """Metrics over a whole split, in which every example counts the same.

    Arguments:
        task: The task.
        predict: A function of a batch and the state after the previous one (None if the batch is
            fresh) that returns the output and the state.
        split: Which part of the data.
        B: The number of examples per batch.
        seed: The seed of the examples; the default makes all runs share them.
        device: The device of the batches.
        dtype: The dtype of floating numbers.
        metrics: Which; None for those of the task.
        rank: The number of this process among those that score the split together.
        processes: How many these are; all must call this.

    Returns:
        The value of each metric that has one, by name.

    Example:
        >>> from cayley.lab.tasks import make_task
        >>> task = make_task("adding", T=20, test=999)
        >>> scores = score_split(task, lambda batch, state: (batch.target, None), "test", 100)
        >>> scores
        {'mse': 0.0}
    """
    if task.size(split) == 0:
        raise ValueError(f"expected examples in the split {split!r}, got none: choose another")
    chosen = task.metrics if metrics is None else metrics
    partials: list[list[Tensor]] = [[] for _ in chosen]
    state = None
    numbers = batches_to_score(task, split, B, rank, processes, seed=seed)
    for batch in prefetch(task, split, B, seed=seed, device=device, dtype=dtype, numbers=numbers):
        output, state = predict(batch, None if batch.fresh else state)
        for metric, rows in zip(chosen, partials, strict=True):
            rows.append(metric.partial(output, batch))
    if processes > 1 and isinstance(task, ExampleTask):
        partials = _gathered(partials, processes, device)
    pooled = (
        (metric.name, metric.pool(torch.cat(rows)))
        for metric, rows in zip(chosen, partials, strict=True)
    )
    return {name: as_score(name, value) for name, value in pooled if value is not None}


def as_score(name: str, value: Any) -> float:
    """The value of a metric as a float, which may come from a task of the user's own.

    Arguments:
        name: The name of the metric.
        value: A number, or a tensor with one.

    Example:
        >>> as_score("mse", torch.tensor(0.5))
        0.5
    """
    try:
        return float(value)
    except (RuntimeError, TypeError, ValueError) as error:
        found = f"shape {(*value.shape,)}" if isinstance(value, Tensor) else repr(value)
        raise RecipeError(
            f"task: expected one number as the value of the metric {name}, got {found}: return a "
            "float from its pool, and from baseline()"
        ) from error


def batches_to_score(
    task: Task, split: Split, B: int, rank: int, processes: int, *, seed: int = 0
) -> range:
    """The numbers of the batches that a process scores: of examples its share, of a text all.

    Example:
        >>> from cayley.lab.tasks import make_task
        >>> task = make_task("adding", T=20, test=500)
        >>> [batches_to_score(task, "test", 100, rank, 2) for rank in range(2)]
        [range(0, 2), range(2, 5)]
    """
    steps = task.steps(split, B, seed=seed)
    if not isinstance(task, ExampleTask):
        # the state goes on from batch to batch
        return range(steps)
    return range(steps * rank // processes, steps * (rank + 1) // processes)


def _gathered(
    partials: list[list[Tensor]], processes: int, device: torch.device | str | None
) -> list[list[Tensor]]:
    """The rows of all processes, in the order of their batches."""
    found: list[list[list[Tensor]]] = [[] for _ in range(processes)]
    dist.all_gather_object(found, [[rows.cpu() for rows in several] for several in partials])
    return [
        [rows.to(device) for several in column for rows in several]
        for column in zip(*found, strict=True)
    ]
