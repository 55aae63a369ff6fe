"""Choices of a space: the whole grid, those that are checked first, and their recipes."""

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from cayley.lab.errors import RecipeError
from cayley.lab.recipes import Entry, Recipe
from cayley.lab.sweeps.space import Parameter, Space

__all__ = ["Choice", "grid", "make_recipe", "probes", "write_setting"]

Choice = dict[str, Any]
MOST = 10**6


def grid(space: Space) -> list[Choice]:
    """Every choice, the last parameter changing fastest, without parameters that do not apply.

    Example:
        >>> from cayley.lab.sweeps import read_space
        >>> space = read_space('''
        ... recipe = "quickstart"
        ... metric = "valid_mse"
        ... sampler.name = "grid"
        ... [parameters]
        ... optim.name = ["Adam", "SGD"]
        ... optim.options.momentum = { values = [0.0, 0.9], when = { "optim.name" = "SGD" } }
        ... ''', "mine")
        >>> for choice in grid(space):
        ...     print(choice)
        {'optim.name': 'Adam'}
        {'optim.name': 'SGD', 'optim.options.momentum': 0.0}
        {'optim.name': 'SGD', 'optim.options.momentum': 0.9}
    """
    most = math.prod(len(one.all_values) for one in space.parameters)
    if most > MOST:
        raise RecipeError(
            f"{space.name}: expected a grid of at most {MOST:,} choices, got {most:,}: shorten the "
            "lists, or choose another sampler"
        )
    choices: list[Choice] = [{}]
    for one in space.parameters:
        choices = [
            {**choice, **more}
            for choice in choices
            for more in (
                [{one.key: value} for value in one.all_values] if one.is_present(choice) else [{}]
            )
        ]
    return choices


def probes(space: Space) -> Iterator[tuple[str, Choice]]:
    """For every value of a list and both ends of each range, its key and a choice with it."""
    for one in space.parameters:
        for value in one.ends:
            needed = {one.key: value, **_conditions(space, one)}
            choice: Choice = {}
            for other in space.parameters:
                if other.key in needed:
                    choice[other.key] = needed[other.key]
                elif other.is_present(choice):
                    choice[other.key] = other.ends[0]
            yield one.key, choice


def _conditions(space: Space, one: Parameter) -> Choice:
    """Values of other parameters with which a parameter is present."""
    known = {other.key: other for other in space.parameters}
    needed: Choice = {}
    for key, few in one.when.items():
        needed |= _conditions(space, known[key]) | {key: few[0]}
    return needed


def make_recipe(base: str, choice: Mapping[str, Any]) -> Recipe:
    """The recipe of a choice.

    Arguments:
        base: The recipe without the choice, as TOML.
        choice: Values by key.

    Example:
        >>> from cayley.lab.recipes import find_recipe, write_recipe
        >>> base = write_recipe(find_recipe("quickstart").recipe())
        >>> recipe = make_recipe(base, {"optim.lr": 0.5, "model.hidden": 8})
        >>> recipe.optim.lr, recipe.model.hidden
        (0.5, 8)
    """
    content = tomllib.loads(base)
    entry = Entry(content["name"], content["table"], {content["variant"]: (content,)})
    settings = [write_setting(key, value) for key, value in choice.items()]
    return entry.recipe(content["variant"], settings)


def write_setting(key: str, value: Any) -> str:
    """A setting as ``--set`` takes it.

    Example:
        >>> write_setting("optim.lr", 1e-4), write_setting("model.hidden", [5, 4])
        ('optim.lr=0.0001', 'model.hidden=[5, 4]')
        >>> write_setting("optim.name", "Adam"), write_setting("bnp", {"eps": 0.5})
        ('optim.name=Adam', 'bnp={eps = 0.5}')
    """
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w:.-]*", value)
    known = ("true", "false", "inf", "nan")
    return f"{key}={value if plain and value not in known else _toml(value)}"


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float):
        # TOML writes numbers that are not finite without quotation marks, unlike JSON
        return repr(value)
    return json.dumps(value)
