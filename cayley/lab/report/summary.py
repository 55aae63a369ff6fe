"""Runs gathered into the rows of tables."""

import json
from collections.abc import Sequence
from statistics import mean

from cayley.lab import published
from cayley.lab.recipes import Table, tables
from cayley.lab.report.accounts import Account, Problem
from cayley.lab.report.changes import find_changes, flatten, tell_apart
from cayley.lab.report.quantities import (
    AUDIO,
    Quantity,
    chosen_by,
    find_baseline,
    is_higher_better,
    measure,
)
from cayley.lab.report.reading import find_published
from cayley.lab.report.rows import Environment, Line, Published, Report, Row, Section

__all__ = ["summarize"]


def summarize(accounts: Sequence[Account], problems: Sequence[Problem] = ()) -> Report:
    """Gather runs into tables.

    Arguments:
        accounts: The runs.
        problems: What is wrong with some of them.
    """
    facts = [_facts(account) for account in accounts]
    letters = {one: _letter(index) for index, one in enumerate(dict.fromkeys(facts))}
    places = {id(account): letters[one] for account, one in zip(accounts, facts, strict=True)}
    # by recipe and what was changed in it, then by all settings: the file may have been edited
    groups: dict[tuple[str, ...], dict[str, list[Account]]] = {}
    for account in accounts:
        recipe = account.recipe
        key = (recipe.table, recipe.name, recipe.variant, *find_changes(account))
        settings = json.dumps(flatten(recipe), sort_keys=True)
        groups.setdefault(key, {}).setdefault(settings, []).append(account)
    rows: dict[str, list[Row]] = {}
    for (table, _, _, *changes), several in groups.items():
        words = tell_apart([group[0].recipe for group in several.values()])
        for group, more in zip(several.values(), words, strict=True):
            here = {places[id(account)] for account in group}
            row = _row(group, (*changes, *more), tuple(sorted(here)))
            rows.setdefault(table, []).append(row)
    environments = (Environment(letter, one, facts.count(one)) for one, letter in letters.items())
    sections = (_section(name, some) for name, some in sorted(rows.items()))
    return Report(tuple(sections), tuple(environments), tuple(problems))


def _row(group: list[Account], changes: tuple[str, ...], environments: tuple[str, ...]) -> Row:
    group = sorted(group, key=lambda account: account.description.seed)
    recipe = group[0].recipe
    printed = (one.parameters for one in find_published(recipe) if one.parameters)
    return Row(recipe, changes, tuple(group), _lines(group), environments, next(printed, ""))


def _lines(accounts: Sequence[Account]) -> tuple[Line, ...]:
    """Published quantities first, then the deciding metric and scores of sound."""
    wanted: dict[tuple[Quantity, float, float | None], list[str]] = {}
    for one in find_published(accounts[0].recipe):
        key = (Quantity.parse(one.metric), one.value, one.std)
        wanted.setdefault(key, []).append(_source(one))
    pairs: list[tuple[Quantity, Published | None]] = [
        (quantity, Published(value, std, tuple(dict.fromkeys(sources))))
        for (quantity, value, std), sources in wanted.items()
    ]
    seen = {(quantity.split, quantity.metric) for quantity, _ in pairs}
    pairs += [(own, None) for own in _own(accounts) if (own.split, own.metric) not in seen]
    return tuple(_line(accounts, quantity, printed) for quantity, printed in pairs)


def _source(one: published.Result) -> str:
    paper = published.papers()[one.paper]
    return f"{', '.join(paper.authors)} {paper.year}, {one.location}"


def _own(accounts: Sequence[Account]) -> list[Quantity]:
    """What runs measure whatever was published."""
    first = accounts[0]
    splits = first.recipe.evaluation.splits
    split = "test" if "test" in splits else splits[-1]
    own = [Quantity(split, first.description.metric.name)]
    heard = {name for one in accounts if one.outcome for name in one.outcome.audio or {}}
    return own + [Quantity("test", name) for name in AUDIO if name in heard]


def _line(accounts: Sequence[Account], quantity: Quantity, printed: Published | None) -> Line:
    # runs of one seed are one: what they differ in is not what seeds do
    seeds: dict[int, list[float]] = {}
    for one in accounts:
        if (value := measure(one, quantity)) is not None:
            seeds.setdefault(one.description.seed, []).append(value)
    choices = dict.fromkeys(filter(None, (chosen_by(one, quantity) for one in accounts)))
    return Line(
        quantity,
        is_higher_better(accounts[0], quantity),
        tuple(map(mean, seeds.values())),
        printed,
        find_baseline(accounts[0], quantity),
        next(iter(choices), ""),
    )


def _section(name: str, rows: list[Row]) -> Section:
    table = tables().get(name, Table(name, "", ()))
    order = {entry.name: index for index, entry in enumerate(table.entries)}
    rows.sort(key=lambda row: (order.get(row.recipe.name, len(order)), row.label))
    return Section(name, table.title or name, tuple(rows))


def _facts(account: Account) -> tuple[tuple[str, str], ...]:
    """Where the numbers are from; the name of the host is nobody's business."""
    description = account.description
    machine, git = description.machine, description.git
    facts = {name: str(machine[name]) for name in ("device", "cpu", "cores") if name in machine}
    facts |= {name: str(machine[name]) for name in ("threads", "precision") if name in machine}
    facts |= {"system": str(machine["platform"])} if "platform" in machine else {}
    facts |= {name.replace("_", "-"): str(one) for name, one in description.versions.items()}
    if git is not None:
        modified = " with changes" if git.get("modified") else ""
        facts["git"] = f"{git.get('revision', '')[:12]}{modified}"
    return tuple(facts.items())


def _letter(index: int) -> str:
    """A, B, …, Z, AA, AB and so on.

    Example:
        >>> _letter(0), _letter(25), _letter(26)
        ('A', 'Z', 'AA')
    """
    rest, last = divmod(index, 26)
    return (_letter(rest - 1) if rest else "") + chr(ord("A") + last)
