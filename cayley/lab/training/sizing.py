"""The size of a network with a given number of parameters."""

from collections.abc import Callable
from dataclasses import replace

from torch import random

from cayley.lab.models import build_model, count_parameters
from cayley.lab.recipes import Recipe
from cayley.lab.training.setup import RunSettings, build_task

__all__ = ["fit_hidden"]

Hidden = int | tuple[int, ...]


def fit_hidden(recipe: Recipe, parameters: int, settings: RunSettings) -> tuple[Hidden, int]:
    """The number of units with which a model has about a given number of parameters.

    Several sizes keep their ratios.

    Arguments:
        recipe: The recipe with the model and the task.
        parameters: The number of parameters, as the papers count them.
        settings: Where the data are; ``tiny`` for the sizes of the task without them.

    Returns:
        ``model.hidden``, and the resulting number of parameters.

    Example:
        >>> from cayley.lab.recipes import find_recipe
        >>> fit_hidden(find_recipe("quickstart").recipe(), 16_000, RunSettings(tiny=True))
        (175, 15926)
    """
    task = build_task(recipe.task, settings)
    own = recipe.model.hidden

    def sizes(n: int) -> Hidden:
        if isinstance(own, int):
            return n
        return tuple(max(1, round(size * n / own[0])) for size in own)

    def count(n: int) -> int:
        # later random numbers must not depend on this model, which is thrown away
        with random.fork_rng(devices=[]):
            return count_parameters(build_model(replace(recipe.model, hidden=sizes(n)), task))

    n = _nearest(count, parameters, own if isinstance(own, int) else own[0])
    return sizes(n), count(n)


def _nearest(count: Callable[[int], int], wanted: int, start: int) -> int:
    """The n ≥ 1 whose count is nearest to a number, for a count that grows with n."""
    low = high = start
    while count(high) < wanted:
        low, high = high, 2 * high
    while low > 1 and count(low) > wanted:
        low, high = low // 2, low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) <= wanted else (low, middle)
    return min((low, high), key=lambda n: abs(count(n) - wanted))
