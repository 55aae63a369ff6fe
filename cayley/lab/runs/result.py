"""The numbers of a finished run: the content of ``result.json``."""

from dataclasses import asdict, dataclass, field
from typing import Any

from cayley.lab.recipes import from_table

__all__ = ["BestValue", "RunResult", "SelectedScores"]


@dataclass(frozen=True)
class SelectedScores:
    """The evaluation of a split that gives the numbers of a run, and the split that chose it."""

    step: int
    epoch: float
    scores: dict[str, float]
    chosen_by: str


@dataclass(frozen=True)
class BestValue:
    """The best value of the deciding metric, and when it was reached."""

    step: int
    epoch: float
    value: float


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result of a run; keys and attributes have the same names.

    Attributes:
        status: ``"done"`` or ``"stopped early"``.
        step, epoch: How long it was trained.
        seconds: The time that training took.
        evaluation_seconds: The time that evaluation took.
        seconds_per_epoch: The median; None without a whole epoch.
        select: Which evaluation gives the numbers, from the recipe.
        selected: The numbers, by split.
        best: The best values, by split.
        last: The scores of the last evaluation, by split and metric.
        train_loss_best: The smallest mean loss between two evaluations; None if there was none.
        audio: Scores of sound; None if it was not scored.
        finished: When.
        metrics: The SHA-256 of ``metrics.jsonl``; empty in format 1.
        weights: The SHA-256 of ``weights.safetensors``, which an archive may have; else empty.
    """

    status: str
    step: int
    epoch: float
    seconds: float
    evaluation_seconds: float = 0.0
    seconds_per_epoch: float | None = None
    select: str = ""
    selected: dict[str, SelectedScores]
    best: dict[str, BestValue] = field(default_factory=dict)
    last: dict[str, dict[str, float]] = field(default_factory=dict)
    train_loss_best: float | None = None
    audio: dict[str, float] | None = None
    finished: str = ""
    metrics: str = ""
    weights: str = ""

    @classmethod
    def parse(cls, content: Any) -> "RunResult":
        """A result from JSON; unknown keys are ignored."""
        return from_table(cls, content, strict=False)

    def to_json(self) -> dict[str, Any]:
        """What :meth:`parse` reads."""
        return asdict(self)
