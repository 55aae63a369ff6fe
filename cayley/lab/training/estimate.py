"""How long a run will take on this machine, by a few of its steps."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from cayley.lab.recipes import Recipe
from cayley.lab.tasks import Batch, Split, Task
from cayley.lab.training.evaluation import check_work, evaluated_splits, evaluation_batch
from cayley.lab.training.learner import Learner
from cayley.lab.training.setup import RunSettings, build_task, initial_model

__all__ = ["Estimate", "estimate_run"]

# the first step may compile; slow ones are not repeated once so many seconds have passed
STEPS = 4
PATIENCE = 1.0


@dataclass(frozen=True)
class Estimate:
    """What a run will take.

    Attributes:
        steps: How many it has.
        step_seconds: Of one of them.
        evaluations: How many it has.
        evaluation_seconds: Of one of them.
    """

    steps: int
    step_seconds: float
    evaluations: int
    evaluation_seconds: float

    @property
    def seconds(self) -> float:
        """Of training and evaluation."""
        return self.steps * self.step_seconds + self.evaluations * self.evaluation_seconds


def estimate_run(recipe: Recipe, settings: RunSettings) -> Estimate:
    """Measure a few steps, and a batch of an evaluation; nothing is written.

    Arguments:
        recipe: What is to be run.
        settings: Machine and data; the data must be there.

    Example:
        >>> from cayley.lab.recipes import find_recipe
        >>> recipe = find_recipe("quickstart").recipe(overrides=["model.hidden=4"])
        >>> found = estimate_run(recipe, RunSettings(tiny=True))
        >>> found.steps, found.evaluations, found.seconds > 0
        (2500, 6, True)
    """
    task = build_task(recipe.task, settings)
    model = initial_model(recipe, task, recipe.seed, settings.machine)
    check_work(recipe, task)
    learner = Learner(recipe, task, model, settings.machine)
    B = recipe.training.batch
    epoch = task.steps("train", B, seed=recipe.seed)
    steps = recipe.training.steps or recipe.training.epochs * epoch
    every = epoch if recipe.evaluation.every == "epoch" else recipe.evaluation.every
    return Estimate(
        steps,
        _measure(learner.learn, _batches(task, "train", B, learner, settings), learner),
        -(-steps // every) + recipe.evaluation.start,
        _evaluation(recipe, task, learner, settings),
    )


def _evaluation(recipe: Recipe, task: Task, learner: Learner, settings: RunSettings) -> float:
    """The seconds of an evaluation: a batch of one split stands for those of all."""
    B = evaluation_batch(recipe)
    splits = evaluated_splits(recipe, task)
    learner.model.eval()
    with torch.no_grad():
        seconds = _measure(
            lambda batch: learner.forward(batch.input, None),
            _batches(task, splits[0], B, learner, settings),
            learner,
        )
    return seconds * sum(task.steps(split, B) for split in splits)


def _batches(
    task: Task, split: Split, B: int, learner: Learner, settings: RunSettings
) -> Iterable[Batch]:
    place = learner.fabric.device
    return task.batches(split, B, epochs=None, device=place, dtype=settings.machine.dtype)


def _measure(work: Callable[[Batch], Any], batches: Iterable[Batch], learner: Learner) -> float:
    """The least seconds of a batch, over a few, fewer where they are slow."""
    times: list[float] = []
    began = time.perf_counter()
    for _, batch in zip(range(STEPS), batches, strict=False):
        work(batch)
        if learner.fabric.device.type == "cuda":
            torch.cuda.synchronize(learner.fabric.device)
        now = time.perf_counter()
        times.append(now - began)
        began = now
        if sum(times) > PATIENCE:
            break
    return min(times)
