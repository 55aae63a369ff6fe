"""Which settings of two recipes differ, in words."""

import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from cayley.lab.recipes.reading import to_table
from cayley.lab.recipes.schema import Recipe

__all__ = ["differences", "distinguish", "edits", "flatten"]

PARTS = ("task", "model", "optim", "bnp", "training", "evaluation")


def differences(one: Recipe, other: Recipe) -> list[str]:
    """The settings of a recipe that differ from those of another, in words."""
    ours, theirs = flatten(one), flatten(other)
    return [
        f"{key} = {_words(ours.get(key))}, not {_words(theirs.get(key))}"
        for key in dict.fromkeys((*ours, *theirs))
        if ours.get(key) != theirs.get(key)
    ]


def edits(one: Recipe, other: Recipe) -> list[str]:
    """Everything that differs between two recipes: settings, and what they are about."""
    about = [
        f"{field.name} = {_words(getattr(one, field.name))}, not "
        f"{_words(getattr(other, field.name))}"
        for field in fields(Recipe)
        if field.name not in PARTS and getattr(one, field.name) != getattr(other, field.name)
    ]
    return [*differences(one, other), *about] or ["numbers of another type"]


def distinguish(recipes: Sequence[Recipe]) -> list[tuple[str, ...]]:
    """For each recipe, those of its settings that are not the same in all recipes."""
    flat = [flatten(recipe) for recipe in recipes]
    keys = dict.fromkeys(key for one in flat for key in one)
    differ = [key for key in keys if any(one.get(key) != flat[0].get(key) for one in flat)]
    return [tuple(f"{key} = {_words(one.get(key))}" for key in differ) for one in flat]


def flatten(recipe: Recipe) -> dict[str, Any]:
    """The settings of a recipe by dotted key, as JSON values."""
    flat: dict[str, Any] = {}

    def add(path: str, value: Any) -> None:
        if isinstance(value, dict) and value:
            for key, part in value.items():
                add(f"{path}.{key}", part)
        else:
            flat[path] = value

    content = json.loads(json.dumps(to_table(recipe)))
    for part in PARTS:
        add(part, content[part])
    return {key: value for key, value in flat.items() if value != {}}


def _words(value: Any) -> str:
    return "none" if value is None else json.dumps(value).strip('"')
