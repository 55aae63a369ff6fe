"""Runs gathered into the rows of tables."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from cayley.lab.recipes import (
    Recipe,
    data_set,
    differences,
    distinguish,
    find_packaged,
    flatten,
    parse_override,
    published,
)
from cayley.lab.report.quantities import (
    AUDIO,
    Quantity,
    chosen_by,
    find_baseline,
    is_higher_better,
    measure,
)
from cayley.lab.report.reading import MeasuredRun, Problem, find_published
from cayley.lab.report.rows import Environment, Line, PublishedValue, Report, Row
from cayley.lab.report.sections import arrange, show_views
from cayley.lab.runs import code_words, own_classes

__all__ = ["find_changes", "is_packaged", "summarize"]


def summarize(runs: Sequence[MeasuredRun], problems: Sequence[Problem] = ()) -> Report:
    """Gather runs into tables.

    Arguments:
        runs: The runs.
        problems: What is wrong with some of them.
    """
    facts = [_facts(run) for run in runs]
    # by their first runs, so that a new one takes no letter from another
    begun = sorted(zip(runs, facts, strict=True), key=lambda pair: pair[0].description.started)
    ordered = dict.fromkeys(one for _, one in begun)
    letters = {one: _letter(index) for index, one in enumerate(ordered)}
    places = {id(run): letters[one] for run, one in zip(runs, facts, strict=True)}
    code = _tell_code_apart(runs)
    groups: dict[tuple[str, ...], list[MeasuredRun]] = {}
    for run, words in zip(runs, code, strict=True):
        recipe = run.recipe
        settings = json.dumps(flatten(recipe), sort_keys=True)
        key = (recipe.table, recipe.name, recipe.variant, settings, *_conditions(run), *words)
        groups.setdefault(key, []).append(run)
    tasks: dict[str, set[str]] = {}
    for run in runs:
        tasks.setdefault(run.recipe.name, set()).add(run.recipe.task.name)
    named: dict[tuple[str, ...], list[list[MeasuredRun]]] = {}
    for (table, name, variant, _, *others), group in groups.items():
        # runs with the same settings may have come to them by other words of the command
        first, *rest = map(_changed_settings, group)
        shared = [one for one in first if all(one in words for words in rest)]
        # copies of one's own recipe, in several files, differ in a few settings only
        copied = not is_packaged(group[0].recipe) and len(tasks[name]) == 1
        where = "" if copied else table
        named.setdefault((where, name, variant, *shared, *others), []).append(group)
    rows = []
    for (_, _, _, *changes), several in named.items():
        # the same words may stand for other settings, since the file may have been edited
        words = distinguish([group[0].recipe for group in several])
        for group, more in zip(several, words, strict=True):
            here = {places[id(run)] for run in group}
            rows.append(_row(group, (*changes, *more), tuple(sorted(here))))
    environments = (Environment(letter, one, facts.count(one)) for one, letter in letters.items())
    shown = tuple(show_views(rows))
    sections = arrange(rows, shown)
    return Report(sections, tuple(environments), tuple(problems), tuple(rows), shown)


def is_packaged(recipe: Recipe) -> bool:
    """Whether the package has a recipe of the same table, name and variant."""
    return find_packaged(recipe) is not None


def find_changes(run: MeasuredRun) -> tuple[str, ...]:
    """The settings of a run that differ from the package's recipe, in words.

    If the package has no such recipe, they are the overrides that the run was started with and that
    still hold; and one that names published numbers is said to be a user's own, since its settings
    may be any.
    """
    return (*_changed_settings(run), *_conditions(run))


def _changed_settings(run: MeasuredRun) -> list[str]:
    entry = find_packaged(run.recipe)
    if entry is not None:
        return differences(run.recipe, entry.recipe(run.recipe.variant))
    settings = flatten(run.recipe)
    return [text for text in run.description.overrides if _holds(text, settings)]


def _holds(override: str, settings: Mapping[str, Any]) -> bool:
    """Whether a run that may have been extended or edited still has an override's value.

    Example:
        >>> [_holds(f"training.steps={k}", {"training.steps": 40}) for k in (20, 40)]
        [False, True]
    """
    key, value = override.partition("=")[0], parse_override(override)
    for part in key.split("."):
        value = value[part]
    return settings.get(key, value) == value


def _conditions(run: MeasuredRun) -> tuple[str, ...]:
    """How a run differs from others with the same settings, in words."""
    recipe, description = run.recipe, run.description
    changes = []
    if recipe.reported and not is_packaged(recipe):
        changes.append("a recipe of one's own")
    if description.tiny:
        changes.append("a few made-up examples")
    elif not description.data.check and data_set(recipe.task):
        changes.append("data files whose checksums were not checked")
    if description.machine.precision != "32-true":
        changes.append(f"precision {description.machine.precision}")
    for change in description.changes:
        if change.kind == "edited":
            changes.append(f"edited after step {change.step}: {'; '.join(change.differences)}")
        elif change.note:
            changes.append(f"extended: {change.note}")
    return tuple(changes)


def _tell_code_apart(runs: Sequence[MeasuredRun]) -> list[tuple[str, ...]]:
    """For each run, those of the user's own modules whose source is not the same in all runs."""
    code = [
        {
            module: code_words(module, run.description.code)
            for _, module in own_classes(run.recipe).values()
        }
        for run in runs
    ]
    sources = Counter(module for module, _ in {pair for one in code for pair in one.items()})
    return [tuple(words for module, words in one.items() if sources[module] > 1) for one in code]


def _row(group: list[MeasuredRun], changes: tuple[str, ...], environments: tuple[str, ...]) -> Row:
    group = sorted(group, key=lambda run: run.description.seed)
    recipe = group[0].recipe
    printed = (one.parameters for one in find_published(recipe) if one.parameters)
    lines = _lines(group, judged=not changes)
    return Row(recipe, changes, tuple(group), lines, environments, next(printed, ""))


def _lines(runs: Sequence[MeasuredRun], *, judged: bool) -> tuple[Line, ...]:
    """Published quantities first, then the deciding metric and scores of sound."""
    wanted: dict[tuple[Quantity, float, float | None], list[published.PublishedResult]] = {}
    for one in find_published(runs[0].recipe):
        key = (Quantity.parse(one.metric), one.value, one.std)
        wanted.setdefault(key, []).append(one)
    pairs: list[tuple[Quantity, PublishedValue | None]] = [
        (quantity, _value(places)) for (quantity, _, _), places in wanted.items()
    ]
    seen = {(quantity.split, quantity.metric) for quantity, _ in pairs}
    pairs += [(own, None) for own in _own(runs) if (own.split, own.metric) not in seen]
    return tuple(_line(runs, quantity, printed, judged) for quantity, printed in pairs)


def _value(places: Sequence[published.PublishedResult]) -> PublishedValue:
    """A number that is printed in several places."""
    first, sources = places[0], dict.fromkeys(map(_source, places))
    rounding = min(map(published.rounding, places))
    return PublishedValue(first.value, first.std, (*sources,), rounding)


def _source(one: published.PublishedResult) -> str:
    return f"{published.papers()[one.paper].short}, {one.location}"


def _own(runs: Sequence[MeasuredRun]) -> list[Quantity]:
    """The quantities of runs, published or not."""
    first = runs[0]
    splits = first.recipe.evaluation.splits
    split = "test" if "test" in splits else splits[-1]
    own = [Quantity(split, first.description.metric.name)]
    scored = {name for one in runs if one.result for name in one.result.audio or {}}
    return own + [Quantity("test", name) for name in AUDIO if name in scored]


def _line(
    runs: Sequence[MeasuredRun], quantity: Quantity, printed: PublishedValue | None, judged: bool
) -> Line:
    # runs with the same seed count as one: they do not show the effect of seeds
    seeds: dict[int, list[float]] = {}
    for one in runs:
        if (value := measure(one, quantity)) is not None:
            seeds.setdefault(one.description.seed, []).append(value)
    choices = dict.fromkeys(filter(None, (chosen_by(one, quantity) for one in runs)))
    return Line(
        quantity,
        is_higher_better(runs[0], quantity),
        tuple(map(mean, seeds.values())),
        printed,
        find_baseline(runs[0], quantity),
        next(iter(choices), ""),
        judged,
    )


def _facts(run: MeasuredRun) -> tuple[tuple[str, str], ...]:
    """Facts about the environment of the numbers, without the name of the host."""
    description = run.description
    machine, git = description.machine, description.git
    facts = {name: getattr(machine, name) for name in ("device", "cpu", "cores")}
    facts |= {"threads": machine.threads, "precision": machine.precision}
    facts |= {"system": machine.platform}
    facts |= {name.replace("_", "-"): one for name, one in description.versions.items()}
    if git is not None:
        facts["git"] = git.revision[:12] + (" with changes" if git.modified else "")
    return tuple((name, str(fact)) for name, fact in facts.items() if fact not in ("", None))


def _letter(index: int) -> str:
    """A, B, …, Z, AA, AB and so on.

    Example:
        >>> _letter(0), _letter(25), _letter(26)
        ('A', 'Z', 'AA')
    """
    rest, last = divmod(index, 26)
    return (_letter(rest - 1) if rest else "") + chr(ord("A") + last)
