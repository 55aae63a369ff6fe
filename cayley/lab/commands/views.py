"""The list of published figures and tables: ``cayley list --views``."""

import json
from argparse import Namespace
from typing import Any

from cayley.lab.recipes import find_recipe, published
from cayley.lab.recipes.views import View, reasons, views

__all__ = ["list_views"]


def list_views(options: Namespace) -> int:
    """List the figures and tables of the papers, and how many recipes each shows.

    Arguments:
        options: Those of ``cayley list``; a view is listed if a recipe of it matches the filters.
    """
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Column
    from rich.table import Table as Grid
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)
    console.width = max(console.width, 80)
    for paper in published.papers().values():
        chosen = [view for view in views().values() if _is_chosen(view, paper.id, options)]
        if options.json:
            for view in chosen:
                print(json.dumps(describe_view(view)))
            continue
        # names are for copying, so they are never cut
        names = Column("view", min_width=max((len(view.name) for view in chosen), default=0))
        grid = Grid.grid(names, Column("recipes", justify="right"), "title", padding=(0, 2))
        for view in chosen:
            grid.add_row(view.name, str(len(view.curves)), view.title)
        if chosen:
            console.print(Text.assemble((paper.short, "bold"), f": {paper.title}"))
            console.print(Padding(grid, (0, 0, 0, 2)))
            for one in reasons() if not (options.model or options.task) else ():
                if one.paper == paper.id:
                    words = Text(f"{', '.join(one.locations)}: {one.reason}", "dim")
                    console.print(Padding(words, (0, 0, 0, 2)))
            console.print()
    return 0


def describe_view(view: View) -> dict[str, Any]:
    """A view in few words."""
    return {
        "view": view.name,
        "paper": view.paper,
        "location": view.location,
        "title": view.title,
        "recipes": [
            {"recipe": curve.recipe, "label": curve.label, "set": list(curve.set)}
            for curve in view.curves
        ],
        "not_runnable": view.not_runnable,
        "same_as": list(view.same_as),
        "note": view.note,
    }


def _is_chosen(view: View, paper: str, options: Namespace) -> bool:
    if view.paper != paper or options.paper.lower() not in view.name:
        return False
    if not (options.model or options.task):
        return True
    recipes = [find_recipe(curve.recipe).recipe() for curve in view.curves]
    return any(
        options.model.lower() in recipe.model.name.lower()
        and options.task.lower() in recipe.task.name.lower()
        for recipe in recipes
    )
