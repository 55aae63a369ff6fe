"""The commands that list and show recipes."""

import json
from argparse import Namespace
from inspect import signature
from typing import Any

from cayley.lab.recipes import Recipe, find_recipe, published, tables, write_recipe

__all__ = ["describe_recipe", "list_recipes", "show"]


def list_recipes(options: Namespace) -> int:
    """List the recipes: what is trained on what, the data that it needs, what was published."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Column
    from rich.table import Table as Grid

    console = Console(highlight=False)
    console.width = max(console.width, 80)
    for table in tables().values():
        chosen = [
            recipe
            for recipe in (entry.recipe() for entry in table.entries)
            if options.paper.lower() in f"{recipe.paper} {recipe.table}".lower()
            and options.model.lower() in recipe.model.name.lower()
            and options.task.lower() in recipe.task.name.lower()
        ]
        if options.json:
            for recipe in chosen:
                print(json.dumps(describe_recipe(recipe)))
            continue
        # names are for copying: they are never cut
        names = Column("recipe", min_width=max((len(r.name) for r in chosen), default=0))
        grid = Grid.grid(names, "model", "task", "data", "published", padding=(0, 2))
        for recipe in chosen:
            known = describe_recipe(recipe)
            # several papers print the same number
            numbers = dict.fromkeys(f"{p['value']:g} {p['metric']}" for p in known["published"])
            network = f"{recipe.model.name} {_sizes(recipe)}"
            grid.add_row(recipe.name, network, recipe.task.name, known["data"], ", ".join(numbers))
        if chosen:
            console.print(f"[bold]{table.name}[/bold]: {table.title}")
            console.print(Padding(grid, (0, 0, 1, 2)))
    return 0


def show(options: Namespace) -> int:
    """Show a recipe: where it is from, what was published, and every setting."""
    entry, variant = find_recipe(options.recipe), options.variant
    recipe = entry.recipe(variant, options.set, options.task)
    known = describe_recipe(recipe)
    if options.json:
        print(json.dumps(known | {"settings": write_recipe(recipe)}))
        return 0
    lines = [
        f"# {recipe.name}, variant {recipe.variant}"
        + "".join(f"; --variant {other} differs" for other in entry.variants if other != variant),
        *(f"# {line}" for line in entry.implied(variant, options.set)),
        f"# from: {recipe.paper} {recipe.location}".rstrip() if recipe.paper else "",
        *(
            f"# published: {one['metric']} {one['value']:g} ({one['id']})"
            for one in known["published"]
        ),
        f"# not stated there: {', '.join(recipe.unstated)}" if recipe.unstated else "",
        f"# data: {known['data']}",
    ]
    print("\n".join(filter(None, lines)))
    print(write_recipe(recipe), end="")
    return 0


def describe_recipe(recipe: Recipe) -> dict[str, Any]:
    """A recipe in few words."""
    results = [published.result(name) for name in recipe.reported]
    return {
        "recipe": recipe.name,
        "table": recipe.table,
        "variant": recipe.variant,
        "paper": recipe.paper,
        "location": recipe.location,
        "model": recipe.model.name,
        "hidden": recipe.model.hidden,
        "task": recipe.task.name,
        "data": _data(recipe),
        "published": [
            {
                "id": one.id,
                "metric": one.metric,
                "value": one.value,
                "paper": one.paper,
                "location": one.location,
            }
            for one in results
        ],
    }


def _data(recipe: Recipe) -> str:
    """What has to be there before a recipe can be trained."""
    from cayley.lab.training import RunSettings, build_task

    task = build_task(recipe.task, RunSettings())
    if "source" not in signature(type(task)).parameters:
        return "none"
    downloads = bool(task.needs) and all(resource.url for resource in task.needs)
    return "download" if downloads else "your copy"


def _sizes(recipe: Recipe) -> str:
    hidden = recipe.model.hidden
    sizes = "-".join(map(str, hidden)) if isinstance(hidden, tuple) else str(hidden)
    return sizes if recipe.model.layers == 1 else f"{sizes} × {recipe.model.layers}"
