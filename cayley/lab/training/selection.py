"""Which evaluation gives the numbers of a run."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from cayley.lab.runs import BestValue, SelectedScores

__all__ = ["Evaluation", "Scores", "Selection"]

Scores = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Evaluation:
    """Scores after a number of steps, by split and metric."""

    step: int
    epoch: float
    scores: Scores


@dataclass
class Selection:
    """The last evaluation and, for each split, the best one by the deciding metric.

    Arguments:
        metric: The deciding metric.
        better: Whether higher or lower values are better.
        select: The evaluation whose scores count: the best on ``"valid"`` or on ``"test"``, the
            ``"last"``, or for ``"each"`` split its own best.

    Attributes:
        last: The last evaluation.
        best: The best evaluation, the first if there are several, by split.
        stale: How many evaluations ago that was, for the split that stops training early.

    Example:
        >>> selection = Selection("mse", "lower", "valid")
        >>> for step, (valid, test) in enumerate([(3.0, 5.0), (2.0, 4.0), (2.5, 3.0)]):
        ...     scores = {"valid": {"mse": valid}, "test": {"mse": test}}
        ...     selection.add(Evaluation(step, 0.0, scores))
        ['valid', 'test']
        ['valid', 'test']
        ['test']
        >>> selection.selected()["test"]
        SelectedScores(step=1, epoch=0.0, scores={'mse': 4.0}, chosen_by='valid')
    """

    metric: str
    better: Literal["lower", "higher"]
    select: Literal["valid", "test", "last", "each"]
    last: Evaluation | None = None
    best: dict[str, Evaluation] = field(default_factory=dict)
    stale: int = 0

    def add(self, evaluation: Evaluation) -> list[str]:
        """Add an evaluation.

        Returns:
            The splits on which it is the best so far.
        """
        improved = []
        for split, scores in evaluation.scores.items():
            before = self.best.get(split)
            best = -math.inf if self.better == "higher" else math.inf
            if before is not None:
                best = before.scores[split][self.metric]
            value = scores[self.metric]
            if value > best if self.better == "higher" else value < best:
                self.best[split] = evaluation
                improved.append(split)
        self.last = evaluation
        self.stale = 0 if self.stopping_split(evaluation.scores) in improved else self.stale + 1
        return improved

    def stopping_split(self, splits: Scores) -> str:
        """The split whose best value ends training if it does not improve for too long."""
        if self.select in splits:
            return self.select
        return "valid" if "valid" in splits else next(iter(splits))

    def selected(self) -> dict[str, SelectedScores]:
        """For each split, the scores that count, and the split that selected them."""
        assert self.last is not None
        chosen = {}
        for split in self.last.scores:
            by = split if self.select == "each" else self.select
            evaluation = self.last if by == "last" else self.best[by]
            chosen[split] = SelectedScores(
                evaluation.step, evaluation.epoch, evaluation.scores[split], by
            )
        return chosen

    def best_values(self) -> dict[str, BestValue]:
        """For each split, the best value of the deciding metric, and when it was reached."""
        return {
            split: BestValue(
                evaluation.step, evaluation.epoch, evaluation.scores[split][self.metric]
            )
            for split, evaluation in self.best.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything that is needed to continue."""
        return {
            "last": None if self.last is None else asdict(self.last),
            "best": {split: asdict(evaluation) for split, evaluation in self.best.items()},
            "stale": self.stale,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned."""
        self.last = None if state["last"] is None else Evaluation(**state["last"])
        self.best = {split: Evaluation(**value) for split, value in state["best"].items()}
        self.stale = state["stale"]
