"""The findings of a judge, and how they are combined into a verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cayley.lab.verdicts.statistics import ALPHA, SEEDS, p_few, p_most

__all__ = ["Finding", "Outcome", "by_count", "by_guess", "by_test", "combine", "missing"]


class Outcome(StrEnum):
    """The outcome for a claim or a part of it."""

    HOLDS = "holds"
    FAILS = "does not hold"
    UNDECIDED = "undecided"
    CANNOT = "cannot be run"


@dataclass(frozen=True)
class Finding:
    """An outcome with its reasons.

    Attributes:
        outcome: What was found.
        words: The numbers.
        leaning: The outcome that an undecided one tends to; undecided if there is none.
        missing: Recipes without enough runs; a study as ``study NAME``.
        unsettled: Recipes of an undecided finding with enough runs for a verdict, each with twice
            as many seeds as it has.
        part: The part of the data that it is about; empty for all.
    """

    outcome: Outcome
    words: tuple[str, ...] = ()
    leaning: Outcome = Outcome.UNDECIDED
    missing: tuple[str, ...] = ()
    unsettled: tuple[tuple[str, int], ...] = ()
    part: str = ""


def missing(recipe: str) -> Finding:
    """Undecided, for a recipe without runs."""
    return Finding(Outcome.UNDECIDED, (f"{recipe}: no runs",), missing=(recipe,))


def by_test(words: str, p_for: float, p_against: float, seeds: Mapping[str, int]) -> Finding:
    """A finding from the p-values of a statement.

    Arguments:
        words: The numbers.
        p_for: The p-value of the data if the statement were only just false.
        p_against: The p-value if it were true, and no more than that.
        seeds: The number of seeds of each recipe that was looked at.
    """
    # of many seeds both can be small: a difference is certain, and not a large one
    holds = p_for <= ALPHA or p_for < p_against
    leaning, p = (Outcome.HOLDS, p_for) if holds else (Outcome.FAILS, p_against)
    words = f"{words}, p = {p:.2g}"
    if p <= ALPHA and min(seeds.values()) >= SEEDS:
        return Finding(leaning, (words,), leaning)
    return _undecided(words, leaning, seeds)


def by_guess(words: str, holds: bool, seeds: Mapping[str, int]) -> Finding:
    """A finding from too few numbers for a test."""
    return _undecided(words, Outcome.HOLDS if holds else Outcome.FAILS, seeds)


def _undecided(words: str, leaning: Outcome, seeds: Mapping[str, int]) -> Finding:
    short = tuple(name for name, n in seeds.items() if n < SEEDS)
    unsettled = () if short else tuple((name, 2 * n) for name, n in seeds.items())
    return Finding(Outcome.UNDECIDED, (words,), leaning, short, unsettled)


def by_count(recipe: str, statement: str, flags: Sequence[bool]) -> Finding:
    """A finding from a yes or no for each seed.

    If all seeds agree, three are enough. If not, more than half must say yes, or fewer than three
    in four, and significantly so.
    """
    n, seen = len(flags), sum(flags)
    words = f"{recipe} {statement}: {seen} of {n} seeds"
    leaning = Outcome.HOLDS if 2 * seen > n else Outcome.FAILS
    if n < SEEDS:
        return _undecided(words, leaning, {recipe: n})
    if 0 < seen < n:
        return by_test(words, p_most(seen, n), p_few(seen, n), {recipe: n})
    return Finding(leaning, (words,), leaning)


def combine(findings: Sequence[Finding]) -> Finding:
    """All parts have to hold; if one does not, the whole does not.

    Example:
        >>> holds, open = Finding(Outcome.HOLDS, ("a",)), Finding(Outcome.UNDECIDED, ("b",))
        >>> combine([holds, open]).outcome.value, combine([holds, holds]).outcome.value
        ('undecided', 'holds')
    """
    outcomes = [one.outcome for one in findings]
    words = tuple(dict.fromkeys(words for one in findings for words in one.words))
    lacking = tuple(dict.fromkeys(name for one in findings for name in one.missing))
    if Outcome.FAILS in outcomes:
        return Finding(Outcome.FAILS, words, Outcome.FAILS, lacking)
    if set(outcomes) == {Outcome.HOLDS}:
        return Finding(Outcome.HOLDS, words, Outcome.HOLDS)
    unsettled = tuple(dict.fromkeys(pair for one in findings for pair in one.unsettled))
    leanings = {one.outcome if one.outcome == Outcome.HOLDS else one.leaning for one in findings}
    leaning = Outcome.UNDECIDED
    if Outcome.FAILS in leanings:
        leaning = Outcome.FAILS
    elif leanings == {Outcome.HOLDS}:
        leaning = Outcome.HOLDS
    return Finding(Outcome.UNDECIDED, words, leaning, lacking, unsettled)
