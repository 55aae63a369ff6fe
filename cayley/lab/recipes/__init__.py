"""Recipes: what to train, and what was published about it.

=============== ===================================================================
``schema``      the settings of a recipe
``reading``     dataclasses from tables of settings, read strictly
``catalogue``   the files of recipes, and recipes by name
``keys``        the keys of all settings
``search``      recipes by words
``data``        the data sets of recipes, and how to get them
``differences`` which settings of two recipes differ
``published``   the printed numbers and statements, from ``published.toml``;
                those without a recipe, with the reason: ``not-runnable.toml``
``tables/``     the recipes of the package
``views``       the papers' figures and tables in terms of recipes: ``views.toml``
=============== ===================================================================
"""

from cayley.lab.recipes import published
from cayley.lab.recipes.catalogue import (
    Entry,
    Table,
    find_packaged,
    find_recipe,
    parse_override,
    read_table,
    tables,
)
from cayley.lab.recipes.data import data_set, supply
from cayley.lab.recipes.differences import differences, distinguish, edits, flatten
from cayley.lab.recipes.keys import setting_keys
from cayley.lab.recipes.reading import check_keys, from_table, to_table
from cayley.lab.recipes.schema import (
    EvaluationSettings,
    ModelSettings,
    OptimSettings,
    Recipe,
    ScheduleSettings,
    Seed,
    TaskSettings,
    TrainingSettings,
    Variant,
    read_recipe,
    write_recipe,
)
from cayley.lab.recipes.search import matches, near_words, plain, task_words

__all__ = [
    "Entry",
    "EvaluationSettings",
    "ModelSettings",
    "OptimSettings",
    "Recipe",
    "ScheduleSettings",
    "Seed",
    "Table",
    "TaskSettings",
    "TrainingSettings",
    "Variant",
    "check_keys",
    "data_set",
    "differences",
    "distinguish",
    "edits",
    "find_packaged",
    "find_recipe",
    "flatten",
    "from_table",
    "matches",
    "near_words",
    "parse_override",
    "plain",
    "published",
    "read_recipe",
    "read_table",
    "setting_keys",
    "supply",
    "tables",
    "task_words",
    "to_table",
    "write_recipe",
]
