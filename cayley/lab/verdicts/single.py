"""Statements about one recipe at a time: its curves, its end, and whether it diverges."""

import math
from abc import abstractmethod
from dataclasses import dataclass

from cayley.lab.verdicts.evidence import Evidence, Moment, Trial
from cayley.lab.verdicts.findings import Finding, by_count, by_guess, by_test, missing
from cayley.lab.verdicts.statement import (
    Scale,
    Statement,
    find_crossing,
    find_line,
    find_values,
    line_words,
    value_words,
)
from cayley.lab.verdicts.statistics import p_below

__all__ = ["Diverges", "Drops", "Ends", "Reaches", "Returns", "Starts"]


@dataclass(frozen=True, kw_only=True)
class _Seen(Statement):
    """A statement about something that is seen in the curve of each seed, or not."""

    def _judge_one(self, recipe: str, evidence: Evidence) -> Finding:
        trials = [one for one in evidence.trials(recipe) if one.curve(self.quantity)]
        if not trials:
            return missing(recipe)
        return by_count(recipe, self._phrase, [self._seen(trial) for trial in trials])

    @property
    @abstractmethod
    def _phrase(self) -> str:
        """What is looked for, in words."""

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
        line = find_line(trial, self.quantity, 1.0, "baseline")
        return abs(trial.curve(self.quantity)[0].value - line) <= self.within * line


@dataclass(frozen=True, kw_only=True)
class Reaches(_Seen):
    """The curve passes a line at some time, or before some epoch; or it never does.

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
        return f"{words} {line_words(self.line, self.of)}{until}"

    def _seen(self, trial: Trial) -> bool:
        epoch = find_crossing(trial, self.quantity, self.line, self.of)
        return (epoch <= self.until and math.isfinite(epoch)) == self.ever


@dataclass(frozen=True, kw_only=True)
class Returns(_Seen):
    """After the curve has passed a line, it returns to another; or it does not.

    Attributes:
        line: The value that it passes.
        back: The value that it returns to.
        of: ``"baseline"`` for multiples of it.
        ever: Whether it returns.
    """

    line: float
    back: float
    of: Scale = ""
    ever: bool = True

    @property
    def _phrase(self) -> str:
        words = "comes back to" if self.ever else "does not come back to"
        return f"{words} {line_words(self.back, self.of)}"

    def _seen(self, trial: Trial) -> bool:
        quantity = self.quantity
        start = find_crossing(trial, quantity, self.line, self.of)
        back = find_line(trial, quantity, self.back, self.of)
        sign = trial.sign(quantity)
        later = (point for point in trial.curve(quantity) if point.epoch > start)
        returned = any(sign * point.value >= sign * back for point in later)
        return math.isfinite(start) and returned == self.ever


@dataclass(frozen=True, kw_only=True)
class Drops(_Seen):
    """The curve goes from one line to another within a time.

    Attributes:
        start: The value that it leaves for the last time before ``line``.
        line: The value that it passes.
        within: The number of epochs.
        of: ``"baseline"`` for multiples of it.
    """

    start: float
    line: float
    within: float
    of: Scale = ""

    @property
    def _phrase(self) -> str:
        lines = f"{line_words(self.start, self.of)} to {line_words(self.line, self.of)}"
        return f"goes from {lines} within {self.within:g} epochs"

    def _seen(self, trial: Trial) -> bool:
        quantity = self.quantity
        end = find_crossing(trial, quantity, self.line, self.of)
        start = find_line(trial, quantity, self.start, self.of)
        sign = trial.sign(quantity)
        before = [
            point.epoch
            for point in trial.curve(quantity)
            if point.epoch < end and sign * point.value >= sign * start
        ]
        return math.isfinite(end) and end - max(before, default=0.0) <= self.within


@dataclass(frozen=True, kw_only=True)
class Diverges(Statement):
    """The loss or the weights become infinite or NaN within a time.

    Attributes:
        within: The number of epochs.
    """

    within: float

    def _judge_one(self, recipe: str, evidence: Evidence) -> Finding:
        ends = evidence.diverged(recipe)
        flags = [epoch <= self.within for epoch in ends] + [False] * len(evidence.trials(recipe))
        if not flags:
            return missing(recipe)
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
        values = find_values(trials, self.quantity, self.at)
        if not values:
            return missing(recipe)
        # so that lower values support the statement
        sign = trials[0].sign(self.quantity) * (1.0 if self.passes else -1.0)
        line = find_line(trials[0], self.quantity, self.line, self.of)
        words = f"{value_words(recipe, self.quantity, values)} against {line:.4g}"
        signed = [sign * value for value in values]
        if len(values) == 1:
            return by_guess(words, signed[0] < sign * line, {recipe: 1})
        against = p_below([-value for value in signed], -sign * line)
        return by_test(words, p_below(signed, sign * line), against, {recipe: len(values)})
