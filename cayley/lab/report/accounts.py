"""What run folders tell; attributes without a word here have the names of the files' keys."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cayley.lab.schema import Recipe

__all__ = ["Account", "Description", "Measure", "Outcome", "Problem", "Selected"]


@dataclass(frozen=True)
class Measure:
    """A metric and which of its values are better."""

    name: str
    better: Literal["lower", "higher"]


@dataclass(frozen=True)
class Description:
    """What a report needs of ``run.json``."""

    seed: int
    overrides: tuple[str, ...]
    tiny: bool
    parameters: int
    metric: Measure
    metrics: tuple[Measure, ...]
    baseline: dict[str, Any]
    baseline_rule: str
    steps: int
    machine: dict[str, Any]
    versions: dict[str, Any]
    git: dict[str, Any] | None = None


@dataclass(frozen=True)
class Selected:
    """The evaluation of a split that gives the numbers of a run, and the split that chose it."""

    step: int
    epoch: float
    scores: dict[str, Any]
    chosen_by: str


@dataclass(frozen=True)
class Outcome:
    """What a report needs of ``result.json``."""

    status: str
    step: int
    epoch: float
    seconds: float
    selected: dict[str, Selected]
    seconds_per_epoch: float | None = None
    audio: dict[str, Any] | None = None


@dataclass(frozen=True)
class Account:
    """What the folder of a run tells.

    Attributes:
        folder: Of the run.
        recipe: With all settings.
        description: What was started, on what.
        evaluations: The records of evaluations, in order.
        step: That of the last record.
        outcome: The numbers; None unless the run is finished.
        faults: What is missing or damaged, in words.
    """

    folder: Path
    recipe: Recipe
    description: Description
    evaluations: tuple[dict[str, Any], ...] = ()
    step: int = 0
    outcome: Outcome | None = None
    faults: tuple[str, ...] = ()


@dataclass(frozen=True)
class Problem:
    """A run that is not, or not fully, in the numbers, and why."""

    folder: Path
    reason: str
