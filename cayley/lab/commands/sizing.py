"""``--set model.parameters=16k``: the number of units for a number of parameters."""

import re
import sys
from collections.abc import Sequence

from cayley.lab.errors import RecipeError
from cayley.lab.recipes import Entry, Variant

__all__ = ["fit_sizes", "read_count"]

KEY = "model.parameters="


def fit_sizes(
    entry: Entry, overrides: Sequence[str], variant: Variant, task: str = ""
) -> list[str]:
    """The overrides, with ``model.hidden`` instead of ``model.parameters``.

    It prints the chosen number of units.

    Arguments:
        entry: The recipe to run.
        overrides: Changes of its settings.
        variant: The variant of the recipe.
        task: The name of another task.
    """
    wanted = [text.removeprefix(KEY) for text in overrides if text.startswith(KEY)]
    others = [text for text in overrides if not text.startswith(KEY)]
    if not wanted:
        return others
    from cayley.lab.training import RunSettings, fit_hidden

    number = read_count(wanted[-1])
    recipe = entry.recipe(variant, others, task)
    # a tiny task has the sizes of the real one, and needs no data
    hidden, count = fit_hidden(recipe, number, RunSettings(tiny=True))
    found = str(list(hidden) if isinstance(hidden, tuple) else hidden).replace(" ", "")
    print(f"{recipe.name}: model.hidden={found} for {count} parameters", file=sys.stderr)
    return [*others, f"model.hidden={found}"]


def read_count(text: str) -> int:
    """A number that may end in k or M.

    Example:
        >>> read_count("16k"), read_count("1.5M"), read_count("15046")
        (16000, 1500000, 15046)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM]?)", text)
    number = round(float(found[1]) * {"": 1, "k": 1e3, "m": 1e6}[found[2].lower()]) if found else 0
    if number < 1:
        raise RecipeError(f"model.parameters: expected a number such as 16k, got {text!r}")
    return number
