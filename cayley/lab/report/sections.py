"""Rows arranged as in the papers: a section for each figure and table that has runs."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from cayley.lab.recipes import Table, differences, find_recipe, flatten, tables
from cayley.lab.recipes.views import Curve, View, views
from cayley.lab.report.rows import Row, Section, Shown
from cayley.lab.wording import natural_key

__all__ = ["arrange", "show_views"]

# settings that do not change how a network is trained
UNESSENTIAL = ("evaluation.", "training.log")


def show_views(rows: Sequence[Row]) -> Iterable[Section]:
    """All figures and tables of the papers, with the rows that belong to each."""
    known: dict[str, list[Row]] = {}
    for row in rows:
        known.setdefault(row.recipe.name, []).append(row)
    for view in views().values():
        shown = [Shown(curve, _find(curve, known.get(curve.recipe, ()))) for curve in view.curves]
        own = tuple(row for one in shown for row in one.rows)
        yield Section(view.name, view.title, own, view, tuple(shown))


def arrange(rows: Sequence[Row], shown: Sequence[Section]) -> tuple[Section, ...]:
    """The sections of a page.

    Numbers are shown in every table that prints them, and in a figure if no table does. Rows that
    are not in the papers, such as runs with other settings, come last, by the table of their
    recipe.

    Arguments:
        rows: All rows.
        shown: What :func:`show_views` gave.
    """
    here = [one for one in shown if one.view is not None and not one.view.same_as and one.is_run]
    # the first table that has the numbers of a row, else the first figure
    places: dict[int, View] = {}
    for one in sorted(here, key=_is_figure):
        for row in one.rows:
            if one.view is not None:
                places.setdefault(id(row), one.view)
    sections = []
    for one in here:
        if _is_figure(one):
            own = tuple(row for row in one.rows if places[id(row)] is one.view)
            others = {places[id(row)].name: places[id(row)] for row in one.rows}
            others.pop(one.name, None)
            one = replace(one, rows=own, elsewhere=tuple(others.values()))
        sections.append(one)
    rest: dict[str, list[Row]] = {}
    for row in rows:
        if id(row) not in places:
            rest.setdefault(row.recipe.table, []).append(row)
    return (*sections, *(_others(name, some) for name, some in sorted(rest.items())))


def _is_figure(section: Section) -> bool:
    return section.view is not None and bool(section.view.panel)


def _find(curve: Curve, rows: Iterable[Row]) -> tuple[Row, ...]:
    """The rows that train what a curve shows, in its own variant first."""
    entry = find_recipe(curve.recipe)
    found = []
    for row in sorted(rows, key=lambda row: row.recipe.variant != curve.variant):
        variant = row.recipe.variant
        if variant not in entry.variants:
            continue
        settings = _essential(flatten(entry.recipe(variant, curve.set)))
        changed = differences(row.recipe, entry.recipe(variant))
        # differences that are not settings, such as --tiny
        if set(row.changes) <= set(changed) and _essential(flatten(row.recipe)) == settings:
            found.append(row)
    return tuple(found)


def _essential(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if not key.startswith(UNESSENTIAL)}


def _others(name: str, rows: list[Row]) -> Section:
    """Rows that no figure or table shows."""
    table = tables().get(name, Table(name, "", ()))
    order = {entry.name: index for index, entry in enumerate(table.entries)}
    rows.sort(key=lambda row: (order.get(row.recipe.name, len(order)), natural_key(row.label)))
    title = table.title or name
    if name in views():
        return Section(f"{name}-others", f"{title}: other runs", tuple(rows))
    return Section(name, title, tuple(rows))
