"""The evidence of judges: finished runs with a recipe's own settings, and studies."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from cayley.lab.report.quantities import Quantity, find_baseline, is_higher_better, measure
from cayley.lab.report.reading import MeasuredRun
from cayley.lab.report.summary import find_changes, is_packaged
from cayley.lab.runs import StudyRecord

__all__ = ["Evidence", "Moment", "Point", "Trial"]

Moment = Literal["selected", "last", "best"]
LOSSES = ("cross_entropy", "mse")


@dataclass(frozen=True)
class Point:
    """A value of a curve."""

    epoch: float
    value: float


@dataclass(frozen=True)
class Trial:
    """A run as judges see it."""

    run: MeasuredRun

    @property
    def seed(self) -> int:
        """Of the run."""
        return self.run.description.seed

    def baseline(self, quantity: Quantity) -> float | None:
        """The score of the naive predictor."""
        return find_baseline(self.run, quantity)

    def higher(self, quantity: Quantity) -> bool:
        """Whether higher values are better."""
        return is_higher_better(self.run, quantity)

    def sign(self, quantity: Quantity) -> float:
        """The factor that makes lower values better."""
        return -1.0 if self.higher(quantity) else 1.0

    def curve(self, quantity: Quantity) -> tuple[Point, ...]:
        """The values of all evaluations after the first step.

        The training loss is that of the steps before an evaluation, unless the training set was
        evaluated too.
        """
        points = []
        for record in self.run.evaluations:
            value = record["scores"].get(quantity.split, {}).get(quantity.metric)
            if value is None and quantity.split == "train" and quantity.metric in LOSSES:
                value = record.get("train_loss")
            if value is not None and record["step"] > 0:
                points.append(Point(record["epoch"], quantity.scale * value))
        return tuple(points)

    def value(self, quantity: Quantity, at: Moment) -> float | None:
        """The number that tables show, or that of the last or the best evaluation."""
        if at == "selected":
            return measure(self.run, quantity)
        values = [point.value for point in self.curve(quantity)]
        if not values:
            return None
        best = max if self.higher(quantity) else min
        return values[-1] if at == "last" else best(values)

    def first(self, quantity: Quantity, passed: Callable[[float], bool]) -> float:
        """The epoch at which a value first passes; infinity if none does."""
        return next(
            (point.epoch for point in self.curve(quantity) if passed(point.value)), math.inf
        )


class Evidence:
    """Runs by recipe; those with other settings, variants or data are no evidence about a claim.

    Of several folders of one study, the one with the study's own settings counts, then the one with
    the most seeds.

    Arguments:
        runs: As :func:`cayley.lab.report.read_runs` returns them.
        studies: As :func:`cayley.lab.runs.read_study` returns them.
    """

    def __init__(self, runs: Iterable[MeasuredRun], studies: Iterable[StudyRecord] = ()) -> None:
        self.studies: dict[str, StudyRecord] = {}
        for study in sorted(studies, key=lambda one: (not one.changed, len(one.seeds))):
            self.studies[study.study] = study
        self._trials: dict[str, dict[int, Trial]] = {}
        self._diverged: dict[str, dict[int, float]] = {}
        for run in runs:
            other = run.recipe.variant != "paper" or not is_packaged(run.recipe)
            if other or find_changes(run):
                continue
            if run.result is None:
                if run.diverged:
                    epoch = run.step / run.description.steps_per_epoch
                    self._diverged.setdefault(run.recipe.name, {})[run.description.seed] = epoch
                continue
            # only one of several runs with the same seed: they do not show the effect of seeds
            seeds = self._trials.setdefault(run.recipe.name, {})
            seeds.setdefault(run.description.seed, Trial(run))

    def trials(self, recipe: str) -> tuple[Trial, ...]:
        """The runs of a recipe, one per seed."""
        return tuple(self._trials.get(recipe, {}).values())

    def diverged(self, recipe: str) -> tuple[float, ...]:
        """The epochs at which runs of a recipe were no longer finite, one per seed."""
        return tuple(self._diverged.get(recipe, {}).values())
