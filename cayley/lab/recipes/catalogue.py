"""Files of recipes: how their rows and variants are merged, and where they are found."""

import difflib
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from cayley.lab.errors import RecipeError
from cayley.lab.recipes.reading import check_keys
from cayley.lab.recipes.schema import ModelSettings, Recipe, ScheduleSettings, Variant, read_recipe

__all__ = [
    "Entry",
    "Table",
    "find_packaged",
    "find_recipe",
    "merge",
    "parse_override",
    "read_table",
    "tables",
]

FOLDER = Path(__file__).parent / "tables"
# the two settings for the length of a run
OTHER = {"epochs": "steps", "steps": "epochs"}
# where a task or a class is named, and where its settings are: another one has others
SETTINGS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("task", "name"): ("task",),
    ("model", "name"): ("model",),
    ("optim", "name"): ("optim", "options"),
    ("optim", "recurrent"): ("optim", "recurrent_options"),
    ("optim", "phases"): ("optim", "phase_options"),
    ("optim", "schedule", "name"): ("optim", "schedule"),
}
# those of a recipe
KEYS = tuple(field.name for field in fields(Recipe))
# keys next to these settings, which are those of the laboratory
OWN: dict[tuple[str, ...], tuple[str, ...]] = {
    ("task",): ("name",),
    ("model",): tuple(field.name for field in fields(ModelSettings)),
    ("optim", "schedule"): tuple(field.name for field in fields(ScheduleSettings)),
}
# with --tiny
TINY_STEPS, TINY_BATCH, TINY_EVALUATION = 2, 4, 10
# the keys of a table for settings of one variant alone
VARIANT_KEYS: dict[Variant, str] = {"paper": "paper-only", "code": "code"}


@dataclass(frozen=True)
class Entry:
    """A row of a table.

    Attributes:
        name: The name of the recipe.
        table: The name of its file, without the ending.
        layers: The tables of settings that each variant is merged from, the weakest first.
    """

    name: str
    table: str
    layers: Mapping[Variant, tuple[Mapping[str, Any], ...]]

    @property
    def variants(self) -> tuple[Variant, ...]:
        """``paper``, and ``code`` if the published code does something else."""
        return tuple(self.layers)

    def recipe(
        self,
        variant: Variant = "paper",
        overrides: Iterable[str] = (),
        task: str = "",
        *,
        tiny: bool = False,
    ) -> Recipe:
        """The recipe of a variant.

        Arguments:
            variant: What the paper says, or what its published code does.
            overrides: Such as ``model.hidden=64``, see :func:`parse_override`. With another model
                or task, the number of parameters is no longer that of the paper. Steps replace
                epochs, and epochs replace steps; and another task, network, optimizer or schedule
                does not get the settings of the one before. With another task, published numbers
                are left out, too. See :meth:`implied`.
            task: The name of another task, as ``task.name`` among the overrides.
            tiny: Whether to make the run take seconds, unless overrides say otherwise.

        Example:
            >>> recipe = find_recipe("quickstart").recipe(overrides=["model.hidden=64"])
            >>> recipe.task.name, recipe.model.hidden
            ('adding', 64)
        """
        content = self._content(variant, tiny)
        changes = _merged(overrides, task)
        if "variant" in changes:
            raise RecipeError(
                f"{self.name}: expected settings of a variant, got variant = "
                f"{changes['variant']!r}: choose it with --variant"
            )
        if "model" in changes or "task" in changes:
            content["parameters"] = 0
        replaced = _replaced(content, changes)
        for place, _, settings in _outdated(content, changes):
            content = _without(content, place, settings)
            unstated = content.get("unstated", ())
            content["unstated"] = [key for key in unstated if not _is_setting(key, place)]
            if place == ("task",):
                content |= {"reported": [], "claims": []}
        content = merge(content, changes)
        for key in replaced:
            content["training"][key] = 0
        return read_recipe(content)

    def implied(
        self,
        variant: Variant = "paper",
        overrides: Iterable[str] = (),
        task: str = "",
        *,
        tiny: bool = False,
    ) -> list[str]:
        """Changes that overrides, and another task, imply, in sentences.

        Arguments:
            variant: What the paper says, or what its published code does.
            overrides: As for :meth:`recipe`.
            task: As for :meth:`recipe`.
            tiny: As for :meth:`recipe`.

        Example:
            >>> find_recipe("scornn/mnist-170").implied(overrides=["training.steps=100"])
            ['training.epochs=0: training.steps=100 takes the place of 70 epochs']
        """
        content, changes = self._content(variant, tiny), _merged(overrides, task)
        # if tiny, the value that is replaced was not in the recipe
        said = [
            f"training.{key}=0: training.{OTHER[key]}={changes['training'][OTHER[key]]} takes the "
            f"place of {content['training'][key]} {key}"
            for key in ([] if tiny else _replaced(content, changes))
        ]
        for place, name, settings in _outdated(content, changes):
            again = _at(changes, place) or ()
            lost = [f"{key} = {value}" for key, value in settings.items() if key not in again]
            said += [f"left out, as settings of {name}: {', '.join(lost)}"] if lost else []
        return said

    def _content(self, variant: Variant, tiny: bool) -> dict[str, Any]:
        """The settings of a variant, not yet checked."""
        if variant not in self.layers:
            raise RecipeError(
                f"{self.name}: expected a variant of {list(self.variants)}, got {variant!r}"
            )
        content: dict[str, Any] = {"table": self.table, "variant": variant}
        for layer in self.layers[variant]:
            content = merge(content, layer)
        return _shorten(read_recipe(content), content) if tiny else content


def _merged(overrides: Iterable[str], task: str) -> dict[str, Any]:
    changes: dict[str, Any] = {"task": {"name": task}} if task else {}
    for text in overrides:
        changes = merge(changes, parse_override(text))
    return changes


def _replaced(content: Mapping[str, Any], changes: Mapping[str, Any]) -> list[str]:
    """The one of ``epochs`` and ``steps`` that is set, if the other is asked for now."""
    before, after = content.get("training"), changes.get("training")
    if not (isinstance(before, Mapping) and isinstance(after, Mapping)):
        # if it is not a table, reading the recipe raises later
        return []
    return [
        key
        for key, other in OTHER.items()
        if before.get(key) and after.get(other) and key not in after
    ]


def _outdated(
    content: Mapping[str, Any], changes: Mapping[str, Any]
) -> list[tuple[tuple[str, ...], str, dict[str, Any]]]:
    """Settings of what the changes replace: their place, what it was, and the settings."""
    found: list[tuple[tuple[str, ...], str, dict[str, Any]]] = []
    for key, place in SETTINGS.items():
        old, new, table = _at(content, key), _at(changes, key), _at(content, place)
        if old and new is not None and new != old and isinstance(table, Mapping):
            settings = {k: value for k, value in table.items() if k not in OWN.get(place, ())}
            found.append((place, old, settings))
    return found


def _is_setting(key: str, place: tuple[str, ...]) -> bool:
    """Whether a key is one of those at a place of :data:`SETTINGS`."""
    above, _, name = key.rpartition(".")
    return above == ".".join(place) and name not in OWN.get(place, ())


def _at(table: Any, place: Sequence[str]) -> Any:
    """What is at a place of nested tables; None if there is nothing."""
    for key in place:
        table = table.get(key) if isinstance(table, Mapping) else None
    return table


def _without(
    table: Mapping[str, Any], place: Sequence[str], names: Collection[str]
) -> dict[str, Any]:
    """Nested tables without some keys of the one at a place."""
    if not place:
        return {key: value for key, value in table.items() if key not in names}
    first, *rest = place
    return {**table, first: _without(table[first], rest, names)}


def _shorten(recipe: Recipe, content: dict[str, Any]) -> dict[str, Any]:
    """The settings for trying out a recipe: a few steps on a few examples."""
    training = recipe.training
    few = {
        "training": {
            "epochs": 0,
            "steps": min(training.steps or TINY_STEPS, TINY_STEPS),
            "batch": min(training.batch, TINY_BATCH),
        },
        # made-up recordings contain no speech to score
        "evaluation": {"batch": TINY_EVALUATION, "audio": False},
    }
    return merge(content, few)


@dataclass(frozen=True)
class Table:
    """A file of recipes: the rows of a published table, or the curves of a figure."""

    name: str
    title: str
    entries: tuple[Entry, ...]


def merge(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """One table over another, key by key; lists are replaced.

    Example:
        >>> merge({"a": {"b": 1, "c": [2]}}, {"a": {"c": [3]}})
        {'a': {'b': 1, 'c': [3]}}
    """
    merged = dict(old)
    for key, value in new.items():
        before = merged.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            value = merge(before, value)
        merged[key] = value
    return merged


def parse_override(text: str) -> dict[str, Any]:
    """The table that ``key.key=value`` stands for.

    The value is written as in TOML; a word needs no quotation marks.

    Example:
        >>> parse_override("model.hidden=64"), parse_override("task.order=permuted")
        ({'model': {'hidden': 64}}, {'task': {'order': 'permuted'}})
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise RecipeError(f"expected key=value, such as model.hidden=64, got {text!r}")
    # what Python makes of bytes of a command line that are no letters
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise RecipeError(f"expected key=value in UTF-8, got {text!r}")
    content: Any = _value(value)
    for part in reversed(key.split(".")):
        content = {part: content}
    return content


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    # TOMLDecodeError, or a number with more digits than Python reads
    except ValueError:
        return text


def read_table(path: Path) -> Table:
    """Read a file of recipes: TOML with ``title``, ``[defaults]`` and ``[[row]]``.

    Rows are merged over the defaults. ``[defaults.code]`` and ``[row.code]`` hold what the
    published code does differently, ``[defaults.paper-only]`` and ``[row.paper-only]`` settings
    that it does not have, such as options of another network. A single recipe, as ``cayley show``
    prints it, is a table of one row.
    """
    try:
        # some editors begin a file with a mark of the order of bytes
        content: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RecipeError(f"could not read {path}: {error}") from error
    try:
        if _is_single(content):
            others = [key for key in content if key not in KEYS]
            check_keys(content, content, ("name",), others=others)
            content = {"row": [content]}
        check_keys(content, ("title", "defaults", "row"), ("row",))
        rows, defaults = content["row"], content.get("defaults", {})
        if not (isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows)):
            raise RecipeError(f"expected tables [[row]], one for each recipe, got row = {rows!r}")
        if not isinstance(defaults, dict):
            raise RecipeError(f"expected a table [defaults], got defaults = {defaults!r}")
        for number, row in enumerate(rows, 1):
            check_keys(row, row, ("name",), f"row {number}: ")
            if not isinstance(row["name"], str):
                raise RecipeError(f"row {number}: expected a name, got {row['name']!r}")
    except RecipeError as error:
        raise RecipeError(f"{path}: {error}") from None
    entries = []
    for row in rows:
        sources = (defaults, row)
        keys = VARIANT_KEYS.values()
        common = tuple({k: v for k, v in source.items() if k not in keys} for source in sources)
        layers: dict[Variant, tuple[Mapping[str, Any], ...]] = {}
        for variant, key in VARIANT_KEYS.items():
            own = tuple(source[key] for source in sources if key in source)
            if own or variant == "paper":
                layers[variant] = common + own
        entries.append(Entry(row["name"], path.stem, layers))
    return Table(path.stem, content.get("title", ""), tuple(entries))


def _is_single(content: Mapping[str, Any]) -> bool:
    """Whether a file is a recipe, even one without a name, and not a table of them."""
    recipe = not content or any(key in content for key in KEYS)
    return "name" in content or (recipe and not any(key in content for key in ("row", "defaults")))


@cache
def tables() -> dict[str, Table]:
    """The recipes of the package, by file."""
    return {path.stem: read_table(path) for path in sorted(FOLDER.glob("*.toml"))}


def find_packaged(recipe: Recipe) -> Entry | None:
    """The recipe of the package with the same table, name and variant; None if there is none.

    Arguments:
        recipe: Any recipe, such as an edited copy of one of the package.

    Example:
        >>> changed = find_recipe("quickstart").recipe(overrides=["model.hidden=64"])
        >>> find_packaged(changed).recipe().model.hidden
        80
    """
    table = tables().get(recipe.table)
    entries = {} if table is None else {entry.name: entry for entry in table.entries}
    entry = entries.get(recipe.name)
    return entry if entry is not None and recipe.variant in entry.variants else None


def find_recipe(name: str) -> Entry:
    """A recipe of the package by its name, or one from a file of the user's own.

    Arguments:
        name: Such as ``scornn/mnist-170``; ``mine.toml``; or ``mine.toml:name`` if there are more.
    """
    path, _, row = name.partition(".toml:")
    if name.endswith(".toml") or row:
        table = read_table(Path(path if name.endswith(".toml") else f"{path}.toml"))
        entries = {entry.name: entry for entry in table.entries}
        if not row and len(entries) == 1:
            return next(iter(entries.values()))
    else:
        row = name
        entries = {entry.name: entry for table in tables().values() for entry in table.entries}
    if row not in entries:
        near = difflib.get_close_matches(row, entries, 3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "see cayley list"
        if not row:
            hint = f"name one of its rows: {name}:{next(iter(entries))}"
        raise RecipeError(f"expected a recipe, got {name!r}: {hint}")
    return entries[row]
