"""The findings of a judge, and how they are combined into a verdict."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from cayley.lab.verdicts.statistics import ALPHA, SEEDS, p_most

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
        part: The part of the data that it is about; empty for all.
    """

    outcome: Outcome
    words: tuple[str, ...] = ()
    leaning: Outcome = Outcome.UNDECIDED
    missing: tuple[str, ...] = ()
    part: str = ""


def missing(recipe: str) -> Finding:
    """Undecided, for a recipe without runs."""
    return Finding(Outcome.UNDECIDED, (f"{recipe}: no runs",), missing=(recipe,))


def by_test(words: str, p_for: float, p_against: float, short: Sequence[str] = ()) -> Finding:
    """A finding from the p-values of a statement and of its opposite.

    Arguments:
        words: The numbers.
        p_for: The p-value of the data if the statement were only just false.
        p_against: The same for its opposite.
        short: Recipes with fewer seeds than a verdict needs.
    """
    leaning = Outcome.HOLDS if p_for < p_against else Outcome.FAILS
    words = f"{words}, p = {min(p_for, p_against):.2g}"
    if not short and min(p_for, p_against) <= ALPHA:
        return Finding(leaning, (words,), leaning)
    return Finding(Outcome.UNDECIDED, (words,), leaning, tuple(short))


def by_guess(words: str, holds: bool, short: Sequence[str]) -> Finding:
    """A finding from too few numbers for a test."""
    leaning = Outcome.HOLDS if holds else Outcome.FAILS
    return Finding(Outcome.UNDECIDED, (words,), leaning, tuple(short))


def by_count(recipe: str, statement: str, flags: Sequence[bool]) -> Finding:
    """A finding from a yes or no for each seed.

    If all seeds agree, three are enough. If not, significantly more of them have to say one thing
    than the other, which takes eight.
    """
    n, seen = len(flags), sum(flags)
    words = f"{recipe} {statement}: {seen} of {n} seeds"
    leaning = Outcome.HOLDS if 2 * seen > n else Outcome.FAILS
    if n < SEEDS:
        return Finding(Outcome.UNDECIDED, (words,), leaning, (recipe,))
    if 0 < seen < n:
        return by_test(words, p_most(seen, n), p_most(n - seen, n))
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
    leanings = {one.outcome if one.outcome == Outcome.HOLDS else one.leaning for one in findings}
    leaning = Outcome.UNDECIDED
    if Outcome.FAILS in leanings:
        leaning = Outcome.FAILS
    elif leanings == {Outcome.HOLDS}:
        leaning = Outcome.HOLDS
    return Finding(Outcome.UNDECIDED, words, leaning, lacking)
