"""The forms that statements about runs take; ``judges.toml`` fills them in.

Every statement is about some recipes and a metric, such as ``test_mse``, and holds if it holds for
each of the recipes. ``of = "baseline"`` makes a line a multiple of what the naive predictor gets.
A line is passed towards better values: downwards for losses, upwards for accuracies.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import Literal

from cayley.lab.errors import RecipeError
from cayley.lab.report.quantities import Quantity
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
from cayley.lab.verdicts.statistics import SEEDS, p_below, p_earlier, p_less
from cayley.lab.wording import counted

__all__ = [
    "FORMS",
    "Better",
    "Diverges",
    "Drops",
    "Earlier",
    "Ends",
    "Equal",
    "Leads",
    "Ratio",
    "Reaches",
    "Returns",
    "Starts",
    "Statement",
    "Tuned",
]

Scale = Literal["", "baseline"]


@dataclass(frozen=True, kw_only=True)
class Statement(ABC):
    """About recipes and a metric.

    Attributes:
        runs: Names of recipes.
        metric: With its split, as in ``published.toml``.
    """

    runs: tuple[str, ...]
    metric: str

    @property
    def recipes(self) -> tuple[str, ...]:
        """All that are looked at."""
        return self.runs

    @property
    def quantity(self) -> Quantity:
        """What is measured."""
        return Quantity.parse(self.metric)

    def judge(self, evidence: Evidence) -> Finding:
        """What runs say about it."""
        return combine([self._judge_one(recipe, evidence) for recipe in self.runs])

    @abstractmethod
    def _judge_one(self, recipe: str, evidence: Evidence) -> Finding:
        """What runs say about it for one recipe."""


@dataclass(frozen=True, kw_only=True)
class _Seen(Statement):
    """What is seen, or is not, in the curve of each seed."""

    def _judge_one(self, recipe: str, evidence: Evidence) -> Finding:
        trials = [one for one in evidence.trials(recipe) if one.curve(self.quantity)]
        if not trials:
            return missing(recipe, 0)
        return by_count(recipe, self._phrase, [self._seen(trial) for trial in trials])

    @property
    @abstractmethod
    def _phrase(self) -> str:
        """What is looked for."""

    @abstractmethod
    def _seen(self, trial: Trial) -> bool:
        """Whether it is in the curve of a run."""


@dataclass(frozen=True, kw_only=True)
class Starts(_Seen):
    """The first evaluation is near the baseline.

    Attributes:
        within: The largest relative distance.
    """

    within: float

    @property
    def _phrase(self) -> str:
        return f"starts within {self.within:.0%} of the baseline"

    def _seen(self, trial: Trial) -> bool:
        line = _line(trial, self.quantity, 1.0, "baseline")
        return abs(trial.curve(self.quantity)[0].value - line) <= self.within * line


@dataclass(frozen=True, kw_only=True)
class Reaches(_Seen):
    """At some time the curve passes a line; or never, or not any more after some epoch.

    Attributes:
        line: The value.
        of: ``"baseline"`` for a multiple of it.
        ever: Whether it passes.
        until: The last epoch that counts.
    """

    line: float
    of: Scale = ""
    ever: bool = True
    until: float = math.inf

    @property
    def _phrase(self) -> str:
        words = "passes" if self.ever else "never passes"
        until = f" within {self.until:g} epochs" if math.isfinite(self.until) else ""
        return f"{words} {_line_words(self.line, self.of)}{until}"

    def _seen(self, trial: Trial) -> bool:
        epoch = _crossing(trial, self.quantity, self.line, self.of)
        return (epoch <= self.until and math.isfinite(epoch)) == self.ever


@dataclass(frozen=True, kw_only=True)
class Returns(_Seen):
    """After the curve has passed a line it comes back to another; or it does not.

    Attributes:
        line: The value that it passes.
        back: The value that it comes back to.
        of: ``"baseline"`` for multiples of it.
        ever: Whether it comes back.
    """

    line: float
    back: float
    of: Scale = ""
    ever: bool = True

    @property
    def _phrase(self) -> str:
        words = "comes back to" if self.ever else "does not come back to"
        return f"{words} {_line_words(self.back, self.of)}"

    def _seen(self, trial: Trial) -> bool:
        quantity = self.quantity
        start = _crossing(trial, quantity, self.line, self.of)
        back = _line(trial, quantity, self.back, self.of)
        sign = -1.0 if trial.higher(quantity) else 1.0
        later = (point for point in trial.curve(quantity) if point.epoch > start)
        return any(sign * point.value >= sign * back for point in later) == self.ever


@dataclass(frozen=True, kw_only=True)
class Drops(_Seen):
    """The curve goes from one line to another within a time.

    Attributes:
        start: The value that it leaves, once and for all before ``line``.
        line: The value that it passes.
        within: Epochs.
        of: ``"baseline"`` for multiples of it.
    """

    start: float
    line: float
    within: float
    of: Scale = ""

    @property
    def _phrase(self) -> str:
        lines = f"{_line_words(self.start, self.of)} to {_line_words(self.line, self.of)}"
        return f"goes from {lines} within {self.within:g} epochs"

    def _seen(self, trial: Trial) -> bool:
        quantity = self.quantity
        end = _crossing(trial, quantity, self.line, self.of)
        start = _line(trial, quantity, self.start, self.of)
        sign = -1.0 if trial.higher(quantity) else 1.0
        before = [
            point.epoch
            for point in trial.curve(quantity)
            if point.epoch < end and sign * point.value >= sign * start
        ]
        return math.isfinite(end) and end - max(before, default=0.0) <= self.within


@dataclass(frozen=True, kw_only=True)
class Diverges(Statement):
    """The loss or the weights cease to be finite within a time.

    Attributes:
        within: Epochs.
    """

    within: float

    def _judge_one(self, recipe: str, evidence: Evidence) -> Finding:
        ends = evidence.diverged(recipe)
        flags = [epoch <= self.within for epoch in ends] + [False] * len(evidence.trials(recipe))
        if not flags:
            return missing(recipe, 0)
        return by_count(recipe, f"is not finite within {self.within:g} epochs", flags)


@dataclass(frozen=True, kw_only=True)
class Ends(Statement):
    """The number passes a line, by a test over seeds.

    Attributes:
        line: The value.
        of: ``"baseline"`` for a multiple of it.
        at: Which number.
        passes: Whether it does.
    """

    line: float
    of: Scale = ""
    at: Moment = "last"
    passes: bool = True

    def _judge_one(self, recipe: str, evidence: Evidence) -> Finding:
        trials = evidence.trials(recipe)
        values = _values(trials, self.quantity, self.at)
        if not values:
            return missing(recipe, 0)
        # so that lower values speak for it
        sign = -1.0 if trials[0].higher(self.quantity) == self.passes else 1.0
        line = _line(trials[0], self.quantity, self.line, self.of)
        words = f"{_words(recipe, self.quantity, values)} against {line:.4g}"
        signed = [sign * value for value in values]
        if len(values) == 1:
            return by_guess(words, signed[0] < sign * line, (recipe,))
        against = p_below([-value for value in signed], -sign * line)
        short = (recipe,) if len(values) < SEEDS else ()
        return by_test(words, p_below(signed, sign * line), against, short)


@dataclass(frozen=True, kw_only=True)
class _Pairs(Statement):
    """About every pair of a recipe and one of some others.

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
        """What runs say about it for a pair."""
        names = (recipe, other)
        both = [[one for one in evidence.trials(name) if self._serves(one)] for name in names]
        named = list(zip(names, both, strict=True))
        if not all(both):
            return combine([missing(name, 0) for name, trials in named if not trials])
        short = tuple(name for name, trials in named if len(trials) < SEEDS)
        return self._judge_trials(names, both, short)

    @abstractmethod
    def _serves(self, trial: Trial) -> bool:
        """Whether a run has what is looked at."""

    @abstractmethod
    def _judge_trials(
        self, names: tuple[str, str], both: Sequence[Sequence[Trial]], short: tuple[str, ...]
    ) -> Finding:
        """What two sets of runs say about it; ``short`` names recipes with too few seeds."""


@dataclass(frozen=True, kw_only=True)
class _Numbers(_Pairs):
    """About the numbers of pairs.

    Attributes:
        at: Which number.
    """

    at: Moment = "selected"

    def _serves(self, trial: Trial) -> bool:
        return trial.value(self.quantity, self.at) is not None

    def _judge_trials(
        self, names: tuple[str, str], both: Sequence[Sequence[Trial]], short: tuple[str, ...]
    ) -> Finding:
        values = [_values(trials, self.quantity, self.at) for trials in both]
        words = " against ".join(
            _words(name, self.quantity, some) for name, some in zip(names, values, strict=True)
        )
        sign = -1.0 if both[0][0].higher(self.quantity) else 1.0
        first, second = ([sign * value for value in some] for some in values)
        if min(len(first), len(second)) > 1:
            return by_test(words, *self._compare(first, second), short)
        # one number has no spread to test against
        return by_guess(words, self._guess(mean(first), mean(second)), short)

    @abstractmethod
    def _guess(self, first: float, second: float) -> bool:
        """Whether two numbers, of which the lower is better, speak for it."""

    @abstractmethod
    def _compare(self, first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
        """The p-values of the statement and of its opposite, where the lower is better."""


@dataclass(frozen=True, kw_only=True)
class Better(_Numbers):
    """The number is better than those of others, by Welch's test.

    Attributes:
        by: At least by so much; negative for "not worse by more than".
    """

    by: float = 0.0

    def _guess(self, first: float, second: float) -> bool:
        return first + self.by < second

    def _compare(self, first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
        return p_less(first, second, self.by), p_less(second, first, -self.by)


@dataclass(frozen=True, kw_only=True)
class Equal(_Numbers):
    """The number is that of others, up to a distance, by two one-sided tests.

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
        """What runs say about it: every row of the grid has to be there."""
        if lacking := [name for name in self.recipes if not evidence.trials(name)]:
            return combine([missing(name, 0) for name in lacking])
        seeds = set.intersection(
            *({trial.seed for trial in evidence.trials(name)} for name in self.recipes)
        )
        flags = [
            self._best_rate(self.runs, seed, evidence) > self._best_rate(self.than, seed, evidence)
            for seed in sorted(seeds)
        ]
        return by_count(
            self.runs[0], f"and so on are best at larger rates than {self.than[0]}", flags
        )

    def _judge_one(self, recipe: str, evidence: Evidence) -> Finding:
        raise NotImplementedError("rows of a grid are judged together")

    def _best_rate(self, names: tuple[str, ...], seed: int, evidence: Evidence) -> float:
        found = []
        for name in names:
            trial = next(one for one in evidence.trials(name) if one.seed == seed)
            value = trial.value(self.quantity, "selected")
            sign = 1.0 if trial.higher(self.quantity) else -1.0
            found.append((-math.inf if value is None else sign * value, trial.run.recipe.optim.lr))
        return max(found)[1]


@dataclass(frozen=True, kw_only=True)
class _Curves(_Pairs):
    """About the curves of pairs."""

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

    def _judge_trials(
        self, names: tuple[str, str], both: Sequence[Sequence[Trial]], short: tuple[str, ...]
    ) -> Finding:
        first, second = (
            sorted(_crossing(trial, self.quantity, self.line, self.of) for trial in trials)
            for trials in both
        )
        words = " against ".join(
            f"{name} passes {_line_words(self.line, self.of)} at epoch "
            + ", ".join(f"{time:.3g}" if math.isfinite(time) else "never" for time in times)
            for name, times in zip(names, (first, second), strict=True)
        )
        return by_test(words, p_earlier(first, second), p_earlier(second, first), short)


@dataclass(frozen=True, kw_only=True)
class Leads(_Curves):
    """From some epoch on, nearly every evaluation is better than the others' mean curve there.

    Attributes:
        after: The epoch.
        share: The least share of evaluations.
    """

    after: float
    share: float = 0.9

    def _judge_trials(
        self, names: tuple[str, str], both: Sequence[Sequence[Trial]], short: tuple[str, ...]
    ) -> Finding:
        trials, others = both
        curves = [one.curve(self.quantity) for one in others]
        flags = [self.leads(trial, curves) for trial in trials]
        found = by_count(names[0], f"leads {names[1]} from epoch {self.after:g} on", flags)
        return replace(found, outcome=Outcome.UNDECIDED, missing=short) if short else found

    def leads(self, trial: Trial, curves: Sequence[tuple[Point, ...]]) -> bool:
        """Whether one run does."""
        sign = -1.0 if trial.higher(self.quantity) else 1.0
        later = [point for point in trial.curve(self.quantity) if point.epoch >= self.after]
        ahead = [
            sign * point.value < sign * mean(_value_at(curve, point.epoch) for curve in curves)
            for point in later
        ]
        return bool(ahead) and mean(ahead) >= self.share


def _line(trial: Trial, quantity: Quantity, line: float, of: Scale) -> float:
    if not of:
        return line
    baseline = trial.baseline(quantity)
    if baseline is None:
        raise RecipeError(
            f"expected a baseline of {quantity.label} in {trial.run.folder}, got none: judge it by "
            "a number"
        )
    return line * baseline


def _line_words(line: float, of: Scale) -> str:
    return f"{line:.3g} of the baseline" if of else f"{line:.3g}"


def _crossing(trial: Trial, quantity: Quantity, line: float, of: Scale) -> float:
    """The epoch at which a curve first is better than a line; infinity for never."""
    sign = -1.0 if trial.higher(quantity) else 1.0
    value = sign * _line(trial, quantity, line, of)
    return trial.first(quantity, lambda other: sign * other < value)


def _values(trials: Sequence[Trial], quantity: Quantity, at: Moment) -> list[float]:
    values = (trial.value(quantity, at) for trial in trials)
    return [value for value in values if value is not None]


def _words(recipe: str, quantity: Quantity, values: Sequence[float]) -> str:
    spread = f" ± {stdev(values):.2g}" if len(values) > 1 else ""
    return f"{recipe} {quantity.label} {mean(values):.4g}{spread} ({counted(len(values), 'seed')})"


def _value_at(curve: Sequence[Point], epoch: float) -> float:
    """Between the points of a curve; the first or the last value outside.

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


FORMS: dict[str, type[Statement]] = {
    "starts": Starts,
    "reaches": Reaches,
    "returns": Returns,
    "drops": Drops,
    "diverges": Diverges,
    "ends": Ends,
    "better": Better,
    "equal": Equal,
    "ratio": Ratio,
    "tuned": Tuned,
    "earlier": Earlier,
    "leads": Leads,
}
