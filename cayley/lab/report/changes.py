"""Which settings of a run are not those of its recipe."""

import json
from collections.abc import Sequence
from typing import Any

from cayley.lab.reading import scatter
from cayley.lab.recipes import tables
from cayley.lab.report.accounts import Account
from cayley.lab.schema import Recipe

__all__ = ["differences", "find_changes", "flatten", "tell_apart"]

PARTS = ("task", "model", "optim", "bnp", "training", "evaluation")


def find_changes(account: Account) -> tuple[str, ...]:
    """The settings of a run that differ from the package's recipe, in words.

    Where the package has no such recipe they are the overrides that the run was started with.
    """
    recipe, description = account.recipe, account.description
    table = tables().get(recipe.table)
    entries = {} if table is None else {entry.name: entry for entry in table.entries}
    entry = entries.get(recipe.name)
    if entry is None or recipe.variant not in entry.variants:
        changes = list(description.overrides)
    else:
        changes = differences(recipe, entry.recipe(recipe.variant))
    if description.tiny:
        changes.append("a few made-up examples")
    precision = description.machine.get("precision", "32-true")
    if precision != "32-true":
        changes.append(f"precision {precision}")
    return tuple(changes)


def differences(one: Recipe, other: Recipe) -> list[str]:
    """The settings of a recipe that are not those of another, in words."""
    ours, theirs = flatten(one), flatten(other)
    return [
        f"{key} = {_words(ours.get(key))}, not {_words(theirs.get(key))}"
        for key in dict.fromkeys((*ours, *theirs))
        if ours.get(key) != theirs.get(key)
    ]


def tell_apart(recipes: Sequence[Recipe]) -> list[tuple[str, ...]]:
    """For each recipe, those of its settings that are not the same in all."""
    flat = [flatten(recipe) for recipe in recipes]
    keys = dict.fromkeys(key for one in flat for key in one)
    differ = [key for key in keys if any(one.get(key) != flat[0].get(key) for one in flat)]
    return [tuple(f"{key} = {_words(one.get(key))}" for key in differ) for one in flat]


def flatten(recipe: Recipe) -> dict[str, Any]:
    """The settings of a recipe by dotted key, as JSON has them."""
    flat: dict[str, Any] = {}

    def add(path: str, value: Any) -> None:
        if isinstance(value, dict) and value:
            for key, part in value.items():
                add(f"{path}.{key}", part)
        else:
            flat[path] = value

    content = json.loads(json.dumps(scatter(recipe)))
    for part in PARTS:
        add(part, content[part])
    return {key: value for key, value in flat.items() if value != {}}


def _words(value: Any) -> str:
    return "none" if value is None else json.dumps(value).strip('"')
