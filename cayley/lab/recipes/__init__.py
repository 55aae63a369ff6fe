"""Recipes: what to train, and what was published about it.

=============== ===================================================================
``schema``      what a recipe says
``reading``     dataclasses from tables of settings, read strictly
``catalogue``   the files of recipes, and recipes by name
``differences`` which settings of two recipes differ
``published``   the printed numbers and statements, from ``published.toml``;
                those that no recipe serves, with the reason: ``not-runnable.toml``
``views``       figures and tables of the documents over recipes, from ``views.toml``
``tables/``     the recipes of the package
=============== ===================================================================
"""

from cayley.lab.recipes import published
from cayley.lab.recipes.catalogue import (
    Entry,
    Table,
    find_recipe,
    parse_override,
    read_table,
    tables,
)
from cayley.lab.recipes.differences import differences, distinguish, flatten
from cayley.lab.recipes.reading import check_keys, from_table, to_table
from cayley.lab.recipes.schema import (
    EvaluationSettings,
    ModelSettings,
    OptimSettings,
    Recipe,
    ScheduleSettings,
    TaskSettings,
    TrainingSettings,
    Variant,
    read_recipe,
    write_recipe,
)
from cayley.lab.recipes.views import Curve, Panel, View, find_curves, find_view, views

__all__ = [
    "Curve",
    "Entry",
    "EvaluationSettings",
    "ModelSettings",
    "OptimSettings",
    "Panel",
    "Recipe",
    "ScheduleSettings",
    "Table",
    "TaskSettings",
    "TrainingSettings",
    "Variant",
    "View",
    "check_keys",
    "differences",
    "distinguish",
    "find_curves",
    "find_recipe",
    "find_view",
    "flatten",
    "from_table",
    "parse_override",
    "published",
    "read_recipe",
    "read_table",
    "tables",
    "to_table",
    "views",
    "write_recipe",
]
