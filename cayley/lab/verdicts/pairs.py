"""Statements that compare recipes: their numbers, their curves, and their best rates."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean

from cayley.lab.verdicts.evidence import Evidence, Moment, Point, Trial
from cayley.lab.verdicts.findings import (
    Finding,
    Outcome,
    by_count,
    by_guess,
    by_test,
    combine,
    missing,
)
from cayley.lab.verdicts.statement import (
    Scale,
    Statement,
    find_crossing,
    find_values,
    line_words,
    value_words,
)
from cayley.lab.verdicts.statistics import (
    SEEDS,
    p_earlier,
    p_less,
    p_rarely_earlier,
    p_rarely_less,
)

__all__ = ["Better", "Earlier", "Equal", "Leads", "Ratio", "Tuned"]


@dataclass(frozen=True, kw_only=True)
class _Pairs(Statement):
    """A statement about every pair of a recipe and one of some others.

    Attributes:
        than: Names of the others.
    """

    than: tuple[str, ...]

    @property
    def recipes(self) -> tuple[str, ...]:
        """All that are looked at."""
        return (*self.runs, *self.than)

    def _judge_one(self, recipe: str, evidence: Evidence) -> Finding:
        return combine([self._judge_pair(recipe, other, evidence) for other in self.than])

    def _judge_pair(self, recipe: str, other: str, evidence: Evidence) -> Finding:
        """What runs say about the statement for a pair."""
        names = (recipe, other)
        both = [[one for one in evidence.trials(name) if self._serves(one)] for name in names]
        named = list(zip(names, both, strict=True))
        if not all(both):
            return combine([missing(name) for name, trials in named if not trials])
        return self._judge_trials(names, both)

    @abstractmethod
    def _serves(self, trial: Trial) -> bool:
        """Whether a run has the quantity that is compared."""

    @abstractmethod
    def _judge_trials(self, names: tuple[str, str], both: Sequence[Sequence[Trial]]) -> Finding:
        """What two sets of runs say."""


@dataclass(frozen=True, kw_only=True)
class _Numbers(_Pairs):
    """A statement about the numbers of pairs.

    Attributes:
        at: Which number.
    """

    at: Moment = "selected"

    def _serves(self, trial: Trial) -> bool:
        return trial.value(self.quantity, self.at) is not None

    def _judge_trials(self, names: tuple[str, str], both: Sequence[Sequence[Trial]]) -> Finding:
        values = [find_values(trials, self.quantity, self.at) for trials in both]
        words = " against ".join(
            value_words(name, self.quantity, some) for name, some in zip(names, values, strict=True)
        )
        sign = both[0][0].sign(self.quantity)
        first, second = ([sign * value for value in some] for some in values)
        if min(len(first), len(second)) > 1:
            return by_test(words, *self._compare(first, second), _seeds(names, both))
        # one number has no spread to test against
        return by_guess(words, self._guess(mean(first), mean(second)), _seeds(names, both))

    @abstractmethod
    def _guess(self, first: float, second: float) -> bool:
        """Whether two numbers, of which the lower is better, support the statement."""

    @abstractmethod
    def _compare(self, first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
        """The p-values of the statement and of its opposite, if lower is better."""


@dataclass(frozen=True, kw_only=True)
class Better(_Numbers):
    """The number is better than those of others, by Welch's test.

    Attributes:
        by: The smallest difference; negative for "not worse by more than".
    """

    by: float = 0.0

    def _guess(self, first: float, second: float) -> bool:
        return first + self.by < second

    def _compare(self, first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
        # what is often true says nothing about a distance
        against = p_less(second, first, -self.by) if self.by else p_rarely_less(first, second)
        return p_less(first, second, self.by), against


@dataclass(frozen=True, kw_only=True)
class Equal(_Numbers):
    """The number equals those of others up to a distance, by two one-sided tests.

    Attributes:
        by: The largest distance.
    """

    by: float

    def _guess(self, first: float, second: float) -> bool:
        return abs(first - second) <= self.by

    def _compare(self, first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
        inside = max(p_less(first, second, -self.by), p_less(second, first, -self.by))
        outside = 2 * min(p_less(first, second, self.by), p_less(second, first, self.by))
        return inside, min(outside, 1.0)


@dataclass(frozen=True, kw_only=True)
class Ratio(_Numbers):
    """The number divided by those of others lies between two, by tests of the logarithms.

    Attributes:
        low: The smallest ratio.
        high: The largest.
    """

    low: float
    high: float

    def _guess(self, first: float, second: float) -> bool:
        return self.low <= first / second <= self.high

    def _compare(self, first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
        x, y = ([math.log(abs(value)) for value in values] for values in (first, second))
        low, high = math.log(self.low), math.log(self.high)
        inside = max(p_less(y, x, low), p_less(x, y, -high))
        outside = 2 * min(p_less(x, y, -low), p_less(y, x, high))
        return inside, min(outside, 1.0)


@dataclass(frozen=True, kw_only=True)
class _Curves(_Pairs):
    """A statement about the curves of pairs."""

    def _serves(self, trial: Trial) -> bool:
        return bool(trial.curve(self.quantity))


@dataclass(frozen=True, kw_only=True)
class Earlier(_Curves):
    """The curve passes a line before those of others, by Mann and Whitney's test.

    Attributes:
        line: The value.
        of: ``"baseline"`` for a multiple of it.
    """

    line: float
    of: Scale = ""

    def _judge_trials(self, names: tuple[str, str], both: Sequence[Sequence[Trial]]) -> Finding:
        first, second = (
            sorted(find_crossing(trial, self.quantity, self.line, self.of) for trial in trials)
            for trials in both
        )
        words = " against ".join(
            f"{name} passes {line_words(self.line, self.of)} at epoch "
            + ", ".join(f"{time:.3g}" if math.isfinite(time) else "never" for time in times)
            for name, times in zip(names, (first, second), strict=True)
        )
        if min(*first, *second) == math.inf:
            words = f"{words}: with runs of this length more seeds would not tell"
            return Finding(Outcome.UNDECIDED, (words,))
        p_for, p_against = p_earlier(first, second), p_rarely_earlier(first, second)
        return by_test(words, p_for, p_against, _seeds(names, both))


@dataclass(frozen=True, kw_only=True)
class Leads(_Curves):
    """From some epoch on, nearly every evaluation is better than the others' mean curve there.

    Attributes:
        after: The epoch.
        share: The smallest share of evaluations.
    """

    after: float
    share: float = 0.9

    def _judge_trials(self, names: tuple[str, str], both: Sequence[Sequence[Trial]]) -> Finding:
        trials, others = both
        curves = [one.curve(self.quantity) for one in others]
        flags = [self._leads(trial, curves) for trial in trials]
        found = by_count(names[0], f"leads {names[1]} from epoch {self.after:g} on", flags)
        if len(others) >= SEEDS:
            return found
        short = (*found.missing, names[1])
        return replace(found, outcome=Outcome.UNDECIDED, missing=short, unsettled=())

    def _leads(self, trial: Trial, curves: Sequence[tuple[Point, ...]]) -> bool:
        """Whether one run does."""
        sign = trial.sign(self.quantity)
        later = [point for point in trial.curve(self.quantity) if point.epoch >= self.after]
        ahead = [
            sign * point.value < sign * mean(_value_at(curve, point.epoch) for curve in curves)
            for point in later
        ]
        return bool(ahead) and mean(ahead) >= self.share


@dataclass(frozen=True, kw_only=True)
class Tuned(Statement):
    """The best of some rows has a larger learning rate than the best of others, in every seed.

    Attributes:
        runs: Rows of one network that differ in their rates.
        than: Rows of the other, with the same rates.
    """

    than: tuple[str, ...]

    @property
    def recipes(self) -> tuple[str, ...]:
        """All that are looked at."""
        return (*self.runs, *self.than)

    def judge(self, evidence: Evidence) -> Finding:
        """What runs say about it: every row of the grid must have been run."""
        if lacking := [name for name in self.recipes if not evidence.trials(name)]:
            return combine([missing(name) for name in lacking])
        seeds = set.intersection(
            *({trial.seed for trial in evidence.trials(name)} for name in self.recipes)
        )
        flags = [
            self._best_rate(self.runs, seed, evidence) > self._best_rate(self.than, seed, evidence)
            for seed in sorted(seeds)
        ]
        found = by_count(
            self.runs[0], f"and so on are best at larger rates than {self.than[0]}", flags
        )
        all_rows = tuple((name, n) for name in self.recipes for _, n in found.unsettled)
        return replace(found, unsettled=all_rows)

    def _judge_one(self, recipe: str, evidence: Evidence) -> Finding:
        raise NotImplementedError("rows of a grid are judged together")

    def _best_rate(self, names: tuple[str, ...], seed: int, evidence: Evidence) -> float:
        found = []
        for name in names:
            trial = next(one for one in evidence.trials(name) if one.seed == seed)
            value = trial.value(self.quantity, "selected")
            loss = math.inf if value is None else trial.sign(self.quantity) * value
            found.append((loss, trial.run.recipe.optim.lr))
        return min(found)[1]


def _seeds(names: Sequence[str], trials: Sequence[Sequence[Trial]]) -> dict[str, int]:
    """The number of seeds of each recipe."""
    return {name: len(some) for name, some in zip(names, trials, strict=True)}


def _value_at(curve: Sequence[Point], epoch: float) -> float:
    """The interpolated value of a curve; outside of it the first or the last value.

    Example:
        >>> _value_at([Point(1.0, 4.0), Point(3.0, 2.0)], 2.0)
        3.0
    """
    later = next((i for i, point in enumerate(curve) if point.epoch >= epoch), len(curve))
    if later in (0, len(curve)):
        return curve[min(later, len(curve) - 1)].value
    left, right = curve[later - 1], curve[later]
    share = (epoch - left.epoch) / (right.epoch - left.epoch)
    return left.value + share * (right.value - left.value)
