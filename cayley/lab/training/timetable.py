"""When a run evaluates, records and ends."""

import math

from cayley.lab.recipes import Recipe
from cayley.lab.training.progress import Progress
from cayley.lab.training.selection import Selection

__all__ = ["Timetable", "schedule_steps"]

# losses wait in memory from one record to the next
LONGEST_LOG = 10_000


def schedule_steps(recipe: Recipe, epoch: int) -> int:
    """How many steps the learning-rate schedule takes in a run.

    Arguments:
        recipe: The recipe, which says whether the schedule takes a step every step or epoch.
        epoch: The number of training steps of an epoch.

    Example:
        >>> from cayley.lab.recipes import find_recipe
        >>> schedule_steps(find_recipe("quickstart").recipe(overrides=["training.steps=25"]), 1)
        25
    """
    training = recipe.training
    if recipe.optim.schedule.every == "step":
        return training.steps or training.epochs * epoch
    return training.epochs or math.ceil(training.steps / epoch)


class Timetable:
    """Decides what is due in a run.

    Arguments:
        recipe: The recipe, with the intervals.
        epoch: The number of steps of the first epoch.
        progress: The progress of the run.
        selection: The evaluations so far.

    Attributes:
        steps: The planned number of steps of the run.
        log: The number of steps between two records of the loss.
    """

    def __init__(
        self, recipe: Recipe, epoch: int, progress: Progress, selection: Selection
    ) -> None:
        self.training = recipe.training
        self.evaluation = recipe.evaluation
        self.steps_per_epoch = epoch
        self.progress = progress
        self.selection = selection
        self.steps = self.training.steps or self.training.epochs * epoch
        self.log = self.training.log or min(max(10, math.ceil(self.steps / 1000)), LONGEST_LOG)

    @property
    def epoch(self) -> float:
        """The number of completed epochs, with a fraction."""
        position = self.progress.position
        return position.epoch + position.batch / self.steps_per_epoch

    @property
    def stopped_early(self) -> bool:
        """Whether evaluations have not improved for too long."""
        patience = self.training.patience
        return bool(patience) and self.selection.stale >= patience

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to train."""
        if self.training.steps:
            done = self.progress.step >= self.training.steps
        else:
            done = self.progress.position.epoch >= self.training.epochs
        return done or self.stopped_early

    @property
    def evaluation_due(self) -> bool:
        """Whether an evaluation is due that has not been done."""
        step, every = self.progress.step, self.evaluation.every
        if self.progress.evaluated == step:
            return False
        if step == 0:
            return self.evaluation.start
        if self.finished:
            return True
        return self.progress.position.batch == 0 if every == "epoch" else step % every == 0
