"""Scores of a model on a split, and the metric that decides which is best."""

import math
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from cayley.lab.errors import NotFinite, RecipeError
from cayley.lab.processes import Processes
from cayley.lab.recipes import Recipe
from cayley.lab.tasks import Batch, Metric, Split, Task, score_split
from cayley.lab.tasks.speech import PACKAGES, RATES, Speech

__all__ = [
    "audio_metrics",
    "check_work",
    "deciding_metric",
    "evaluated_splits",
    "evaluation_batch",
    "score_model",
]


def score_model(
    recipe: Recipe,
    task: Task,
    model: nn.Module,
    split: Split,
    *,
    seed: int,
    device: torch.device,
    dtype: torch.dtype,
    metrics: tuple[Metric, ...] | None = None,
    between: Callable[[], None] | None = None,
    processes: Processes | None = None,
) -> dict[str, float]:
    """The metrics of a model on a split.

    Arguments:
        recipe: Determines the size of a batch.
        task: The task, with the examples and the metrics.
        model: The model; it is in evaluation mode while it is scored.
        split: The split to score.
        seed: The seed of the run: the training examples depend on it, the other splits do not.
        device: Where to put the batches.
        dtype: The type of floating-point numbers.
        metrics: The metrics to compute; None for those of the task.
        between: Called before each batch.
        processes: The processes that score the split together; None for this one alone.

    Returns:
        The value of each metric; all are finite.
    """

    def predict(batch: Batch, state: Any) -> tuple[Tensor, Any]:
        if between is not None:
            between()
        return model(batch.input, state)

    training = model.training
    model.eval()
    B = evaluation_batch(recipe)
    seed = seed if split == "train" else 0
    try:
        scores = score_split(
            task,
            predict,
            split,
            B,
            seed=seed,
            device=device,
            dtype=dtype,
            metrics=metrics,
            rank=0 if processes is None else processes.rank,
            processes=1 if processes is None else processes.count,
        )
    except OverflowError:
        raise NotFinite(f"a metric of the split {split} is infinite") from None
    finally:
        model.train(training)
    for name, value in scores.items():
        if not math.isfinite(value):
            raise NotFinite(f"{split} {name} is {value}")
    return scores


def check_work(recipe: Recipe, task: Task) -> None:
    """Raise unless there are examples to train on, and everything to be scored can be scored."""
    if recipe.evaluation.audio:
        # before recordings are read, which takes a while
        audio_metrics(task)
    if not task.size("train"):
        raise RecipeError(f"task: expected examples to train on, got none in {recipe.task.name}")
    splits = evaluated_splits(recipe, task)
    deciding_metric(recipe, task)
    first: tuple[Split, int] = ("train", recipe.training.batch)
    for split, B in (first, *((split, evaluation_batch(recipe)) for split in splits)):
        try:
            task.steps(split, B)
        except ValueError as error:
            raise RecipeError(
                f"split {split}: {error}: change training.batch or evaluation.batch"
            ) from error
    if recipe.evaluation.audio and "test" not in splits:
        raise RecipeError(
            "evaluation.audio: expected the split test among the evaluated ones, as its "
            f"sound is scored, got {', '.join(splits)}: add it to evaluation.splits, or set "
            "evaluation.audio=false"
        )


def evaluation_batch(recipe: Recipe) -> int:
    """How many examples a batch of an evaluation has."""
    return recipe.evaluation.batch or recipe.training.batch


def evaluated_splits(recipe: Recipe, task: Task) -> list[Split]:
    """The splits that are evaluated: those that have examples."""
    evaluation = recipe.evaluation
    splits = [split for split in evaluation.splits if task.size(split)]
    if not splits or (evaluation.select in ("valid", "test") and evaluation.select not in splits):
        raise RecipeError(
            f"evaluation: expected examples in the split {evaluation.select!r}, got none in "
            f"{recipe.task.name}: choose evaluation.splits and select among its splits"
        )
    return splits


def deciding_metric(recipe: Recipe, task: Task) -> Metric:
    """The metric that decides which evaluation is best."""
    metrics = {metric.name: metric for metric in task.metrics}
    name = recipe.evaluation.metric or task.metrics[0].name
    if name not in metrics:
        raise RecipeError(f"evaluation.metric: expected one of {', '.join(metrics)}, got {name!r}")
    return metrics[name]


def audio_metrics(task: Task) -> tuple[Metric, ...]:
    """Metrics of the sound of the predictions."""
    if not isinstance(task, Speech):
        raise RecipeError(f"evaluation.audio: expected a speech task, got {type(task).__name__}")
    missing = [package for package in PACKAGES if find_spec(package) is None]
    if missing:
        raise RecipeError(
            f"evaluation.audio: expected the package {missing[0]}, got none: pip install "
            "'cayley[speech]', or set evaluation.audio=false"
        )
    if task.rate not in RATES:
        raise RecipeError(
            f"evaluation.audio: expected a rate of {' or '.join(map(str, RATES))} Hz, got "
            f"{task.rate}: change task.rate, or set evaluation.audio=false"
        )
    return task.audio_metrics
