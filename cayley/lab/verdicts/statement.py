"""The base class of statements about runs; ``judges.toml`` contains the statements.

Every statement is about some recipes and a metric, such as ``test_mse``, and holds if it holds for
each of the recipes. ``of = "baseline"`` makes a line a multiple of the naive predictor's score. A
line is passed towards better values: downwards for losses, upwards for accuracies.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Literal

from cayley.lab.errors import RecipeError
from cayley.lab.report.quantities import Quantity
from cayley.lab.verdicts.evidence import Evidence, Moment, Trial
from cayley.lab.verdicts.findings import Finding, combine
from cayley.lab.wording import counted

__all__ = [
    "Scale",
    "Statement",
    "find_crossing",
    "find_line",
    "find_values",
    "line_words",
    "value_words",
]

Scale = Literal["", "baseline"]


@dataclass(frozen=True, kw_only=True)
class Statement(ABC):
    """A statement about recipes and a metric.

    Attributes:
        runs: Names of recipes.
        metric: With its split, as in ``published.toml``.
    """

    runs: tuple[str, ...]
    metric: str

    @property
    def recipes(self) -> tuple[str, ...]:
        """All recipes that it is about."""
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


def find_line(trial: Trial, quantity: Quantity, line: float, of: Scale) -> float:
    """The value of a line for a run."""
    if not of:
        return line
    baseline = trial.baseline(quantity)
    if baseline is None:
        raise RecipeError(
            f"expected a baseline of {quantity.label} in {trial.run.folder}, got none: use a "
            "number in judges.toml"
        )
    return line * baseline


def line_words(line: float, of: Scale) -> str:
    """A line in words."""
    return f"{line:.3g} of the baseline" if of else f"{line:.3g}"


def find_crossing(trial: Trial, quantity: Quantity, line: float, of: Scale) -> float:
    """The epoch at which a curve is first better than a line; infinity for never."""
    sign = trial.sign(quantity)
    value = sign * find_line(trial, quantity, line, of)
    return trial.first(quantity, lambda other: sign * other < value)


def find_values(trials: Sequence[Trial], quantity: Quantity, at: Moment) -> list[float]:
    """The numbers of runs that have one."""
    values = (trial.value(quantity, at) for trial in trials)
    return [value for value in values if value is not None]


def value_words(recipe: str, quantity: Quantity, values: Sequence[float]) -> str:
    """Numbers of a recipe in words."""
    spread = f" ± {stdev(values):.2g}" if len(values) > 1 else ""
    return f"{recipe} {quantity.label} {mean(values):.4g}{spread} ({counted(len(values), 'seed')})"
