"""The published numbers and statements that recipes are meant to reproduce."""

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from cayley.lab.errors import RecipeError
from cayley.lab.recipes.reading import from_table

__all__ = [
    "Claim",
    "Gap",
    "Paper",
    "PublishedResult",
    "checks",
    "claim",
    "claims",
    "gaps",
    "papers",
    "result",
    "results",
    "rounding",
    "studies",
]

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Paper:
    """Where results were published."""

    id: str
    title: str
    authors: tuple[str, ...]
    year: int

    @property
    def short(self) -> str:
        """Such as ``Helfrich, Ye 2020``."""
        return f"{', '.join(self.authors)} {self.year}"


@dataclass(frozen=True)
class PublishedResult:
    """A printed number.

    Attributes:
        id: Its name here, such as ``mnist-scornn-170``.
        paper: The ``id`` of the paper.
        location: The table in the paper.
        task: The paper's name of the task.
        model: The paper's name of the model.
        metric: ``train_``, ``valid_`` or ``test_`` and what was measured.
        value: The number.
        std: The number printed after ±.
        hidden: The number of units.
        parameters: The number of parameters as it is printed, such as ``16k``.
        same_as: The ``id`` of the same number in another paper.
        quoted_from: The paper that the table quotes it from.
        note: What a reader should know.
    """

    id: str
    paper: str
    location: str
    task: str
    model: str
    metric: str
    value: float
    std: float | None = None
    hidden: int | tuple[int, ...] | None = None
    parameters: str | None = None
    same_as: str | None = None
    quoted_from: str | None = None
    note: str = ""


@dataclass(frozen=True)
class Claim:
    """A statement about a curve, an order or a mechanism, worded so that it can be checked.

    Attributes:
        id: Its name here.
        paper: The ``id`` of the paper.
        location: The place in the paper.
        task: What it is about.
        kind: Such as ``curve``, ``ordering``, ``ablation`` or ``theory``.
        text: The statement.
        note: Which parts of the wording are ours.
        same_as: The ``id`` of the same statement in another paper.
    """

    id: str
    paper: str
    location: str
    task: str
    kind: str
    text: str
    note: str = ""
    same_as: str | None = None


@dataclass(frozen=True)
class Gap:
    """Results and claims without a recipe, and why; or what tests check in addition to recipes.

    Attributes:
        reason: Why, or what is still to come.
        tests: Our tests that check them instead, by their pytest names.
        results: Names of results.
        claims: Names of claims.
    """

    reason: str
    tests: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()


T = TypeVar("T", Paper, PublishedResult, Claim)


@cache
def papers() -> dict[str, Paper]:
    """The papers, by name."""
    return _index([from_table(Paper, one) for one in _content("published")["paper"]])


@cache
def results() -> dict[str, PublishedResult]:
    """The printed numbers, by name."""
    return _index(
        [
            from_table(
                PublishedResult, {"paper": table["paper"], "location": table["location"], **one}
            )
            for table in _content("published")["table"]
            for one in table["results"]
        ]
    )


@cache
def claims() -> dict[str, Claim]:
    """The statements, by name."""
    return _index([from_table(Claim, one) for one in _content("published")["claim"]])


@cache
def gaps() -> tuple[Gap, ...]:
    """Everything without a recipe."""
    return tuple(from_table(Gap, one) for one in _content("not-runnable")["gap"])


@cache
def checks() -> tuple[Gap, ...]:
    """What our tests check about claims that have recipes too."""
    return tuple(from_table(Gap, one) for one in _content("not-runnable")["check"])


@cache
def studies() -> dict[str, tuple[str, ...]]:
    """The claims of each study."""
    return {one["name"]: tuple(one["claims"]) for one in _content("not-runnable")["study"]}


def result(id: str) -> PublishedResult:
    """A printed number by its name.

    Example:
        >>> one = result("mnist-scornn-170")
        >>> one.value, one.metric, one.paper, one.location
        (0.973, 'test_accuracy', 'helfrich2020', 'Table 2.1')
    """
    return _find(results(), id, "a result")


def rounding(one: PublishedResult) -> float:
    """How far a printed number may be from what was measured: half a unit of its last digit.

    A number here has no zeros at its end, so the digits are those of all numbers of this quantity
    in the table.

    Example:
        >>> rounding(result("pmnist-lstm-128"))  # 0.920
        0.0005
    """
    alike = (
        other.value
        for other in results().values()
        if (other.paper, other.location, other.metric) == (one.paper, one.location, one.metric)
    )
    return 0.5 * 10.0 ** -max(_decimals(value) for value in alike)


def _decimals(value: float) -> int:
    """How many digits follow the point.

    Example:
        >>> _decimals(0.962), _decimals(12.0), _decimals(5e-06)
        (3, 0, 6)
    """
    exponent = Decimal(repr(value)).normalize().as_tuple().exponent
    if not isinstance(exponent, int):
        raise ValueError(f"expected a finite number, got {value}")
    return max(0, -exponent)


def claim(id: str) -> Claim:
    """A statement by its name.

    Example:
        >>> claim("mnist-rho-optimum").text
        'Best number of -1 entries in D: n/10 for row order, n/2 for the fixed permutation.'
    """
    return _find(claims(), id, "a claim")


@cache
def _content(name: str) -> Mapping[str, Any]:
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def _index(entries: list[T]) -> dict[str, T]:
    index = {one.id: one for one in entries}
    if len(index) < len(entries):
        names = [one.id for one in entries]
        double = next(name for name in names if names.count(name) > 1)
        raise RecipeError(f"published.toml: expected unique names, got {double} twice")
    return index


def _find(entries: Mapping[str, T], id: str, kind: str) -> T:
    if id not in entries:
        near = difflib.get_close_matches(id, entries, 1)
        hint = f": did you mean {near[0]}?" if near else ""
        raise RecipeError(f"expected {kind} of published.toml, got {id!r}{hint}")
    return entries[id]
