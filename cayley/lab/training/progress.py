"""The progress of a run: counters, means and stopwatches, all saved in a checkpoint."""

import time
from dataclasses import dataclass, field
from typing import Any

from cayley.lab.tasks import Position

__all__ = ["Mean", "Progress", "Stopwatch"]


@dataclass
class Mean:
    """A running mean, which does not depend on how its numbers are grouped."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        """Add a number."""
        self.total += value
        self.count += 1

    def take(self) -> float | None:
        """Return the mean, or None if there are no numbers, and start again."""
        value = self.total / self.count if self.count else None
        self.total, self.count = 0.0, 0
        return value


@dataclass
class Stopwatch:
    """Counts the seconds while it is running."""

    passed: float = 0.0
    since: float | None = None

    @property
    def seconds(self) -> float:
        """The seconds so far."""
        return self.passed + (0.0 if self.since is None else time.perf_counter() - self.since)

    def start(self) -> None:
        """Start counting."""
        self.since = time.perf_counter()

    def stop(self) -> None:
        """Stop counting."""
        self.passed, self.since = self.seconds, None


@dataclass
class Progress:
    """The progress of a run, without weights.

    Attributes:
        step: The number of completed steps.
        position: The position in the batches of the task.
        evaluated: The step of the last evaluation; −1 if there was none.
        logged: The mean loss since it was last recorded.
        trained: The mean loss since the last evaluation.
        best_train_loss: The smallest mean loss between two evaluations; None if there was none.
        watch: The time that training took, over all sessions.
        evaluation_seconds: The time that evaluation took.
        epoch_began: What the watch showed when the epoch began.
        epoch_seconds: The time that each epoch took.
    """

    step: int = 0
    position: Position = field(default_factory=Position)
    evaluated: int = -1
    logged: Mean = field(default_factory=Mean)
    trained: Mean = field(default_factory=Mean)
    best_train_loss: float | None = None
    watch: Stopwatch = field(default_factory=Stopwatch)
    evaluation_seconds: float = 0.0
    epoch_began: float = 0.0
    epoch_seconds: list[float] = field(default_factory=list)

    def end_epoch(self) -> None:
        """Record how long the epoch took."""
        now = self.watch.seconds
        self.epoch_seconds.append(now - self.epoch_began)
        self.epoch_began = now

    def end_interval(self) -> float | None:
        """The mean loss since the last evaluation; None at the start."""
        loss = self.trained.take()
        if loss is not None:
            best = self.best_train_loss
            self.best_train_loss = loss if best is None else min(loss, best)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Everything, as plain numbers."""
        return {
            "step": self.step,
            "position": (self.position.epoch, self.position.batch),
            "evaluated": self.evaluated,
            "logged": (self.logged.total, self.logged.count),
            "trained": (self.trained.total, self.trained.count),
            "best_train_loss": self.best_train_loss,
            "seconds": self.watch.seconds,
            "evaluation_seconds": self.evaluation_seconds,
            "epoch_began": self.epoch_began,
            "epoch_seconds": list(self.epoch_seconds),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned."""
        self.step = state["step"]
        self.position = Position(*state["position"])
        self.evaluated = state["evaluated"]
        self.logged = Mean(*state["logged"])
        self.trained = Mean(*state["trained"])
        self.best_train_loss = state["best_train_loss"]
        self.watch = Stopwatch(state["seconds"])
        self.evaluation_seconds = state["evaluation_seconds"]
        self.epoch_began = state["epoch_began"]
        self.epoch_seconds = list(state["epoch_seconds"])
