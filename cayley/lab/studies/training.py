"""Networks of recipes, trained for some steps in memory, to be examined on the way."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cayley.lab.errors import NotFinite
from cayley.lab.recipes import ModelSettings, find_recipe
from cayley.lab.tasks import Batch, Metric, Split
from cayley.lab.training import RunSettings, build_task, initial_model
from cayley.lab.training.evaluation import score_model
from cayley.lab.training.learner import Learner

__all__ = ["Subject"]


class Subject:
    """A network with its task and its optimizer, as in a recipe.

    Arguments:
        recipe: The name of a recipe.
        changes: Changes of the recipe, each as ``key=value``.
        seed: The seed of the network and of the examples.
        settings: Machine and data.
        model: Another network instead of the recipe's.
    """

    def __init__(
        self,
        recipe: str,
        changes: Sequence[str],
        seed: int,
        settings: RunSettings,
        model: ModelSettings | None = None,
    ) -> None:
        self.recipe = find_recipe(recipe).recipe(overrides=changes)
        if model is not None:
            self.recipe = replace(self.recipe, model=model, parameters=0)
        self.task = build_task(self.recipe.task, settings)
        machine = settings.machine
        self.seed, self.dtype = seed, machine.dtype
        self.model = initial_model(self.recipe, self.task, seed, machine)
        self.learner = Learner(self.recipe, self.task, self.model, machine)
        self.batches: Iterator[Batch] = self.task.batches(
            "train",
            self.recipe.training.batch,
            seed=seed,
            epochs=None,
            device=self.learner.engine.device,
            dtype=machine.dtype,
        )

    def train(self, steps: int) -> list[float]:
        """Take steps; their losses, which have to be finite."""
        # copies, since the next step of a CUDA graph overwrites it; to read each would wait for it
        losses = [self.learner.learn(next(self.batches)).clone() for _ in range(steps)]
        if not self.learner.is_finite():
            raise NotFinite(f"expected finite weights of {self.recipe.name}, got inf or NaN")
        return torch.stack(losses).tolist() if losses else []

    def score(self, split: Split, metric: Metric | None = None) -> float:
        """A metric, the task's first if none is given, with the current weights."""
        metric = self.task.metrics[0] if metric is None else metric
        scores = score_model(
            self.recipe,
            self.task,
            self.learner.forward,
            split,
            seed=self.seed,
            device=self.learner.engine.device,
            dtype=self.dtype,
            metrics=(metric,),
        )
        return scores[metric.name]

    def loss(self, batch: Batch) -> Tensor:
        """The loss of a batch with the current weights."""
        output, _ = self.model(batch.input)
        return self.task.loss(output, batch)
