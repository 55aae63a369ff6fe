"""The commands that list and show recipes."""

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from cayley.lab.commands.presence import find_missing
from cayley.lab.commands.sizing import fit_sizes
from cayley.lab.recipes import (
    Recipe,
    data_set,
    find_recipe,
    matches,
    near_words,
    plain,
    published,
    supply,
    tables,
    task_words,
    write_recipe,
)
from cayley.lab.recipes.differences import differences
from cayley.lab.wording import align, counted

__all__ = ["describe_recipe", "list_recipes", "show"]


def list_recipes(options: Namespace) -> int:
    """List the recipes: network, task, the data that it needs, and what was published.

    Words are searched for in names, tables, networks, tasks, data sets and papers and, if nothing
    is found, in claims; a recipe is listed if it contains all of them. With --data, only recipes
    whose data are there are listed.
    """
    found = _find(options)
    if not any(found.values()):
        found = _find(options, claims=True)
    recipes = [recipe for several in found.values() for recipe in several]
    if not recipes:
        print(f"cayley: {_nothing(options)}", file=sys.stderr)
        return 0
    missing: dict[str, str] = {}
    where = str(options.data)
    if options.data is not None:
        missing = find_missing(recipes, options.data)
        where += "" if options.data.exists() else ", which does not exist"
        found = {
            name: [recipe for recipe in several if data_set(recipe.task) not in missing]
            for name, several in found.items()
        }
    if options.json:
        for recipe in (recipe for several in found.values() for recipe in several):
            print(json.dumps(describe_recipe(recipe)))
    else:
        for name, several in found.items():
            if several:
                _print_table(name, several)
    if missing:
        count = sum(data_set(recipe.task) in missing for recipe in recipes)
        print(
            f"cayley: {counted(count, 'recipe')} left out, whose data are not in {where}: "
            f"{', '.join(missing)}",
            file=sys.stderr,
        )
    return 0


def show(options: Namespace) -> int:
    """Show a recipe: where it is from, what was published, and every setting.

    If the published code does something else than the paper says, that is printed too.
    """
    entry, variant = find_recipe(options.recipe), options.variant
    changes = fit_sizes(entry, options.set, variant, options.task)
    recipe = entry.recipe(variant, changes, options.task)
    known = describe_recipe(recipe)
    if options.json:
        print(json.dumps(known | {"settings": write_recipe(recipe)}))
        return 0
    heading = "published" if recipe == entry.recipe(variant) else "published, with other settings"
    lines = [
        f"# {recipe.name}, variant {recipe.variant}"
        + "".join(f"; --variant {other} differs" for other in entry.variants if other != variant),
        *(f"# {line}" for line in entry.implied(variant, changes, options.task)),
        f"# from: {recipe.paper} {recipe.location}".rstrip() if recipe.paper else "",
        *(
            f"# {heading}: {one['metric']} {one['value']:g} ({one['id']})"
            for one in known["published"]
        ),
        f"# not stated there: {', '.join(recipe.unstated)}" if recipe.unstated else "",
        *(
            f"# in the {variant}: {difference}"
            for variant in entry.variants
            for difference in differences(entry.recipe(variant, changes, options.task), recipe)
        ),
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
        "data": supply(recipe.task),
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


def _find(options: Namespace, *, claims: bool = False) -> dict[str, list[Recipe]]:
    """The recipes that match the options, by table."""
    return {
        table.name: [
            recipe
            for recipe in (entry.recipe() for entry in table.entries)
            if _chosen(recipe, options)
            and matches(recipe, options.words, table.title, claims=claims)
        ]
        for table in tables().values()
    }


def _chosen(recipe: Recipe, options: Namespace) -> bool:
    known = {
        "paper": (f"{recipe.paper} {recipe.table}",),
        "model": (recipe.model.name,),
        "task": task_words(recipe.task),
    }
    return all(
        any(plain(getattr(options, what)) in plain(text) for text in texts)
        for what, texts in known.items()
    )


def _nothing(options: Namespace) -> str:
    words = [word for word in (*options.words, options.paper, options.model, options.task) if word]
    every = [entry.recipe() for table in tables().values() for entry in table.entries]
    near = near_words(words, every)
    hint = f"did you mean {' or '.join(near)}?" if near else "cayley list shows them all"
    return f"found no recipe with {' and '.join(words)}: {hint}"


def _print_table(name: str, recipes: Sequence[Recipe]) -> None:
    title = f"{name}: {tables()[name].title}"
    print(f"\033[1m{title}\033[0m" if sys.stdout.isatty() else title)
    for line in align([_row(recipe) for recipe in recipes], _width()):
        print(f"  {line}")
    print()


def _row(recipe: Recipe) -> list[str]:
    known = describe_recipe(recipe)
    # several papers print the same number
    numbers = dict.fromkeys(f"{p['value']:g} {p['metric']}" for p in known["published"])
    network = f"{recipe.model.name} {_sizes(recipe)}"
    return [recipe.name, network, recipe.task.name, known["data"], ", ".join(numbers)]


def _width() -> int:
    """The columns of the terminal; unlimited without one, since other programs need everything."""
    from shutil import get_terminal_size

    return max(get_terminal_size().columns, 80) - 2 if sys.stdout.isatty() else sys.maxsize


def _sizes(recipe: Recipe) -> str:
    hidden = recipe.model.hidden
    sizes = "-".join(map(str, hidden)) if isinstance(hidden, tuple) else str(hidden)
    return sizes if recipe.model.layers == 1 else f"{sizes} × {recipe.model.layers}"
