"""Published figures and tables as views over recipes of any file, from ``views.toml``."""

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from cayley.lab.errors import RecipeError
from cayley.lab.recipes import published
from cayley.lab.recipes.catalogue import find_recipe, tables
from cayley.lab.recipes.reading import check_keys, from_table
from cayley.lab.recipes.schema import Recipe, Variant

__all__ = [
    "Curve",
    "Panel",
    "Reason",
    "View",
    "find_curves",
    "find_view",
    "make_name",
    "read_views",
    "reasons",
    "views",
    "wanted_views",
]

# the ones that readers want first; the others come after them
WANTED = (
    *("helfrich2020-table-2.1", "scurnn2019-table-1"),
    *("scornn2018-figure-1", "scurnn2019-figure-4", "helfrich2020-figure-2.13"),
    *("helfrich2020-figure-2.6", "scurnn2019-figure-5", "helfrich2020-figure-2.12"),
    *("pospisil2023-table-3.1", "pospisil2023-table-3.2", "pospisil2023-table-3.3"),
    *("pospisil2023-table-3.4", "pospisil2023-table-4.1", "helfrich2020-table-2.5"),
    *("pospisil2023-figure-2.1", "pospisil2023-figure-2.2", "pospisil2023-figure-2.3"),
    *("pospisil2023-figure-2.4", "pospisil2023-table-2.1", "helfrich2020-table-2.3"),
)


PATH = Path(__file__).parent / "views.toml"
# keys of a view that are defaults of its panels
SHARED = ("x", "y", "end", "scale", "curves")


@dataclass(frozen=True)
class Curve:
    """A recipe in a figure, or in a row of a table.

    Attributes:
        recipe: Its name.
        label: Its label in the legend; empty for the name.
        set: Settings that differ from the recipe, such as ``model.hidden=64``.
        variant: The variant of the recipe.
    """

    recipe: str
    label: str = ""
    set: tuple[str, ...] = ()
    variant: Variant = "paper"

    def resolve(self) -> Recipe:
        """The recipe with all settings.

        Example:
            >>> Curve("quickstart", set=("model.hidden=64",)).resolve().model.hidden
            64
        """
        return find_recipe(self.recipe).recipe(self.variant, self.set)


@dataclass(frozen=True)
class Panel:
    """A chart of a figure.

    Attributes:
        y: Splits and metrics to draw, such as ``test_mse``.
        curves: The recipes to draw.
        title: The title, which distinguishes it from the other panels.
        x: The horizontal axis.
        end: The end of the horizontal axis; 0 for the end of the runs.
        scale: The scale of the values; ``"zoom"`` shows the range where the curves end.
    """

    y: tuple[str, ...]
    curves: tuple[Curve, ...]
    title: str = ""
    x: Literal["epoch", "step"] = "epoch"
    end: float = 0.0
    scale: Literal["log", "linear", "zoom"] = "log"


@dataclass(frozen=True)
class View:
    """A published figure or table.

    Attributes:
        paper: The ``id`` of the paper.
        location: The figure or table in the paper.
        title: What it shows.
        panel: The charts of a figure; none for a table.
        same_as: Views of other papers that show all of its rows.
        note: What a reader should know.
    """

    paper: str
    location: str
    title: str
    panel: tuple[Panel, ...] = ()
    same_as: tuple[str, ...] = ()
    note: str = ""

    @property
    def name(self) -> str:
        """Such as ``helfrich2020-figure-2.12``."""
        return make_name(self.paper, self.location)

    @property
    def source(self) -> str:
        """Such as ``Helfrich 2020, Figure 2.12``."""
        return f"{published.papers()[self.paper].short}, {self.location}"

    @property
    def curves(self) -> tuple[Curve, ...]:
        """The curves of all panels, or the rows of a table, each once."""
        if not self.panel:
            return tuple(map(Curve, _reporting(self.paper, self.location)))
        curves: dict[tuple[Any, ...], Curve] = {}
        for panel in self.panel:
            for curve in panel.curves:
                curves.setdefault((curve.recipe, curve.set, curve.variant), curve)
        return tuple(curves.values())

    @property
    def not_runnable(self) -> dict[str, str]:
        """Rows of a table without a recipe, and why."""
        listed = {id: gap.reason for gap in published.gaps() for id in gap.results}
        return {
            f"{one.model} {_sizes(one.hidden)}".strip(): listed[id]
            for id, one in published.results().items()
            if not self.panel and id in listed and _is_at(one, self.paper, self.location)
        }


@dataclass(frozen=True)
class Reason:
    """Figures and tables of a paper that are not views, and why."""

    paper: str
    reason: str
    locations: tuple[str, ...]


@cache
def views() -> dict[str, View]:
    """The views of the package by name, in the order of the documents.

    Example:
        >>> [curve.label for curve in views()["pospisil2023-figure-3.8"].curves]
        ['LN', 'ATN']
    """
    return read_views(PATH.read_text(encoding="utf-8"))


@cache
def reasons() -> tuple[Reason, ...]:
    """Figures and tables without a view."""
    content = tomllib.loads(PATH.read_text(encoding="utf-8"))
    return tuple(from_table(Reason, one, "reason.") for one in content["reason"])


def make_name(paper: str, location: str) -> str:
    """The name of a figure or table.

    Example:
        >>> make_name("helfrich2020", "Figure 2.12")
        'helfrich2020-figure-2.12'
    """
    return f"{paper}-{location}".lower().replace(" ", "-")


def find_view(name: str) -> View:
    """A view of the package by its name."""
    if name not in views():
        for one in reasons():
            if name in (make_name(one.paper, location) for location in one.locations):
                raise RecipeError(f"{name} has nothing to train. {one.reason}")
        near = difflib.get_close_matches(name, {**views(), **tables()}, 3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "see cayley list --views"
        raise RecipeError(f"expected a figure or table, got {name!r}: {hint}")
    return views()[name]


def find_curves(name: str) -> tuple[Curve, ...]:
    """The curves of a view or, if there is no such view, the rows of a table of recipes.

    Example:
        >>> find_curves("quickstart")
        (Curve(recipe='quickstart', label='', set=(), variant='paper'),)
    """
    if name in tables() and name not in views():
        return tuple(Curve(entry.name) for entry in tables()[name].entries)
    return find_view(name).curves


def wanted_views() -> list[str]:
    """All views, the ones that readers want most first.

    Example:
        >>> wanted_views()[0], len(wanted_views()) == len(views())
        ('helfrich2020-table-2.1', True)
    """
    return sorted(views(), key=lambda name: WANTED.index(name) if name in WANTED else len(WANTED))


def read_views(text: str) -> dict[str, View]:
    """Read and check views, written as TOML.

    Arguments:
        text: With ``[[view]]`` and ``[[reason]]``, see ``views.toml``.
    """
    content = tomllib.loads(text)
    check_keys(content, ("view", "reason"), ("view",))
    found: dict[str, View] = {}
    for number, one in enumerate(content["view"], 1):
        view = _read(one, number)
        if view.name in found:
            raise RecipeError(f"{view.name}: expected each figure and table once, got it twice")
        found[view.name] = view
    for view in found.values():
        for name in view.same_as:
            if name not in found:
                raise RecipeError(f"{view.name}: same_as: expected a view, got {name!r}")
    return found


def _read(content: Mapping[str, Any], number: int) -> View:
    shared = {key: content[key] for key in SHARED if key in content}
    own = {key: value for key, value in content.items() if key not in SHARED}
    try:
        if shared:
            own["panel"] = [shared | panel for panel in content.get("panel", [{}])]
        view: View = from_table(View, own)
        for panel in view.panel:
            _check(panel)
    except RecipeError as error:
        where = f"{content.get('paper', '')} {content.get('location', f'view {number}')}".strip()
        raise RecipeError(f"{where}: {error}") from None
    return view


def _check(panel: Panel) -> None:
    known = {entry.name: entry for table in tables().values() for entry in table.entries}
    for curve in panel.curves:
        if curve.recipe not in known:
            find_recipe(curve.recipe)
        if curve.variant not in known[curve.recipe].variants:
            raise RecipeError(
                f"{curve.recipe}: expected a variant that it has, got {curve.variant}"
            )
    for name in panel.y:
        if name.partition("_")[0] not in ("train", "valid", "test"):
            raise RecipeError(f"y: expected a split and a metric, such as test_mse, got {name!r}")
    labels = [curve.label or curve.recipe for curve in panel.curves]
    if len(set(labels)) < len(labels):
        double = next(label for label in labels if labels.count(label) > 1)
        raise RecipeError(f"curves: expected unique labels, got {double!r} twice")


def _reporting(paper: str, location: str) -> list[str]:
    """Names of recipes for the numbers printed at a place, in the order of the numbers."""
    places = {
        id: place
        for place, (id, one) in enumerate(published.results().items())
        if _is_at(one, paper, location)
    }
    found = {}
    for table in tables().values():
        for entry in table.entries:
            layers = entry.layers["paper"]
            ids = next((one["reported"] for one in reversed(layers) if "reported" in one), ())
            here = [places[id] for id in ids if id in places]
            if here:
                found[entry.name] = min(here)
    return sorted(found, key=lambda name: found[name])


def _is_at(one: published.PublishedResult, paper: str, location: str) -> bool:
    # a section is followed by which part of it
    return one.paper == paper and (one.location + ",").startswith(location + ",")


def _sizes(hidden: int | tuple[int, ...] | None) -> str:
    if hidden is None:
        return ""
    return "+".join(map(str, hidden)) if isinstance(hidden, tuple) else str(hidden)
