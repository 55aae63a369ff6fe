"""Checks of a space before any trial: each value of a list, and both ends of each range."""

from typing import Literal

import torch

from cayley.lab.errors import RecipeError
from cayley.lab.models import build_model
from cayley.lab.recipes import Recipe, write_recipe
from cayley.lab.runs import find_optimism
from cayley.lab.sweeps.choices import make_recipe, probes
from cayley.lab.sweeps.space import Space
from cayley.lab.tasks import Task
from cayley.lab.training import RunSettings, build_task
from cayley.lab.training.optimizers import build_bnp, build_optimizer

__all__ = ["check_space", "find_direction"]

Direction = Literal["minimize", "maximize"]


def check_space(space: Space, *, tiny: bool = False) -> str:
    """Raise unless the task, network and optimizer can be built at every end of a space.

    No data are read, and networks are built on the meta device.

    Arguments:
        space: The space to be searched.
        tiny: Whether a few made-up examples replace the data.

    Returns:
        Why the values of trials may be optimistic, in words; empty if none are.
    """
    optimism = ""
    base = write_recipe(space.base(tiny=tiny))
    for key, choice in probes(space):
        try:
            recipe = make_recipe(base, choice)
            _build(recipe, space)
        except RecipeError as error:
            raise RecipeError(f"{space.name}: parameters.{key}: {error}") from None
        optimism = optimism or find_optimism(space.metric, recipe.evaluation.select)
    return optimism


def _build(recipe: Recipe, space: Space) -> None:
    task = build_task(recipe.task, RunSettings(tiny=True))
    find_direction(space, recipe, task)
    try:
        # the user's own class may not support the meta device
        place = "cpu" if ":" in recipe.model.name else "meta"
        with torch.device(place), torch.random.fork_rng([]):
            model = build_model(recipe.model, task)
        build_optimizer(recipe.optim, model)
        build_bnp(recipe.bnp, model)
    except RecipeError:
        # the error already names the setting
        raise
    except (TypeError, ValueError) as error:
        raise RecipeError(str(error)) from error


def find_direction(space: Space, recipe: Recipe, task: Task) -> Direction:
    """Whether to minimize or maximize the metric of a space; raise if runs will not have it.

    Arguments:
        space: The space to be searched.
        recipe: The recipe of a trial.
        task: The task of that recipe.
    """
    if space.split not in recipe.evaluation.splits:
        splits = ", ".join(recipe.evaluation.splits)
        raise RecipeError(
            f"metric: expected a split that is evaluated, {splits}, got {space.metric!r}: choose "
            "another, or add the split to evaluation.splits with set"
        )
    better = {metric.name: metric.better for metric in task.metrics}
    if space.score not in better:
        valid = ", ".join(f"{space.split}_{name}" for name in better)
        raise RecipeError(f"metric: expected one of {valid}, got {space.metric!r}")
    return space.direction or ("minimize" if better[space.score] == "lower" else "maximize")
