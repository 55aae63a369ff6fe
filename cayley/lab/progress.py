"""Who is told how a run goes on: a person at a terminal, a log file, a program, or nobody."""

import json
import sys
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import TaskID

__all__ = ["JSON", "Live", "Plain", "Quiet", "Reporter", "choose_reporter", "duration", "number"]


class Reporter(ABC):
    """Is told what happens in a run."""

    @abstractmethod
    def begin(self, description: dict[str, Any], step: int) -> None:
        """A run begins, or goes on after a step; the description is that of ``run.json``."""

    @abstractmethod
    def step(self, step: int, epoch: float) -> None:
        """A step is over."""

    @abstractmethod
    def record(self, record: dict[str, Any]) -> None:
        """A line was added to the metrics."""

    @abstractmethod
    def end(self, result: dict[str, Any] | None) -> None:
        """The run is finished; None if it was left before."""


class Quiet(Reporter):
    """Says nothing."""

    def begin(self, description: dict[str, Any], step: int) -> None:
        """Nothing."""

    def step(self, step: int, epoch: float) -> None:
        """Nothing."""

    def record(self, record: dict[str, Any]) -> None:
        """Nothing."""

    def end(self, result: dict[str, Any] | None) -> None:
        """Nothing."""


class JSON(Reporter):
    """Prints a JSON object a line: the description, every record of the metrics, the result."""

    def begin(self, description: dict[str, Any], step: int) -> None:
        """Print the description."""
        self._print({"kind": "run", "step": step, **description})

    def step(self, step: int, epoch: float) -> None:
        """Nothing."""

    def record(self, record: dict[str, Any]) -> None:
        """Print it."""
        self._print(record)

    def end(self, result: dict[str, Any] | None) -> None:
        """Print the result."""
        if result is not None:
            self._print({"kind": "result", **result})

    def _print(self, content: dict[str, Any]) -> None:
        print(json.dumps(content), flush=True)


class Clock:
    """Rate and time left, by the steps of this session."""

    def __init__(self, step: int, steps: int) -> None:
        self.first, self.steps = step, steps
        self.began = time.monotonic()

    def words(self, step: int) -> str:
        """Such as ``"12.5/s, 0:01:10 left"``."""
        passed = time.monotonic() - self.began
        rate = (step - self.first) / passed if passed > 0 else 0.0
        if rate == 0:
            return ""
        left = max(self.steps - step, 0) / rate
        speed = f"{rate:.3g}/s" if rate >= 1 else f"{1 / rate:.3g} s a step"
        return f"{speed}, {duration(left)} left"


class Plain(Reporter):
    """Prints a line for each evaluation, and one a minute in between, to the standard error.

    Arguments:
        seconds: Between two lines of training.
    """

    def __init__(self, seconds: float = 60.0) -> None:
        self.seconds = seconds

    def begin(self, description: dict[str, Any], step: int) -> None:
        """Say what it is about."""
        self.title = title(description)
        self.metric = description["metric"]["name"]
        self.clock = Clock(step, description["steps"])
        self.told = time.monotonic()
        for line in headlines(description, step):
            self._print(line)

    def step(self, step: int, epoch: float) -> None:
        """Nothing: records tell enough."""

    def record(self, record: dict[str, Any]) -> None:
        """Print evaluations and events, and some of the rest."""
        now = time.monotonic()
        if record["kind"] == "train" and now - self.told < self.seconds:
            return
        self.told = now
        left = self.clock.words(record["step"]) if record["kind"] != "event" else ""
        self._print(f"{sentence(record, self.metric)}{left and f'  ({left})'}")

    def end(self, result: dict[str, Any] | None) -> None:
        """Nothing: the command prints the result."""

    def _print(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


class Live(Reporter):
    """Shows a bar with step rate, time left, loss, metric and baseline; evaluations above it."""

    def begin(self, description: dict[str, Any], step: int) -> None:
        """Show the bar."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self.metric = description["metric"]["name"]
        self.clock = Clock(step, description["steps"])
        self.shown = 0.0
        self.loss, self.score = "", ""
        self.baseline = baseline(description)
        console = Console(stderr=True, highlight=False)
        self.progress = Progress(
            TextColumn("{task.completed}/{task.total}"),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[words]}"),
            console=console,
            transient=True,
        )
        for line in headlines(description, step):
            console.print(line, soft_wrap=True)
        self.bar: TaskID = self.progress.add_task(
            "", total=description["steps"], completed=step, words=""
        )
        self.progress.start()

    def step(self, step: int, epoch: float) -> None:
        """Move the bar, ten times a second."""
        now = time.monotonic()
        if now - self.shown >= 0.1:
            self.shown = now
            parts = (self.clock.words(step), self.loss, self.score, self.baseline)
            words = "  ".join(part for part in parts if part)
            self.progress.update(self.bar, completed=step, words=words)

    def record(self, record: dict[str, Any]) -> None:
        """Show evaluations and events above the bar, losses in it."""
        if record["kind"] == "train":
            self.loss = f"loss {number(record['loss'])}"
            return
        if record["kind"] == "eval":
            split = "valid" if "valid" in record["scores"] else next(iter(record["scores"]))
            self.score = f"{split} {self.metric} {number(record['scores'][split][self.metric])}"
        self.progress.console.print(sentence(record, self.metric), soft_wrap=True)

    def end(self, result: dict[str, Any] | None) -> None:
        """Take the bar away."""
        self.progress.stop()


def choose_reporter(quiet: bool, as_json: bool) -> Reporter:
    """What suits: a bar at a terminal, lines elsewhere."""
    if as_json:
        return JSON()
    if quiet:
        return Quiet()
    return Live() if sys.stderr.isatty() else Plain()


def title(description: dict[str, Any]) -> str:
    """Recipe, variant and seed."""
    variant = "" if description["variant"] == "paper" else f" ({description['variant']})"
    return f"{description['recipe']}{variant}, seed {description['seed']}"


def headlines(description: dict[str, Any], step: int) -> list[str]:
    """What a run is about, in two lines."""
    machine = description["machine"]
    threads = f"{machine['threads']} thread{'' if machine['threads'] == 1 else 's'}"
    where = f"{machine['accelerator']}, {machine['precision']}, {threads}"
    begin = f", from step {step}" if step else ""
    return [
        f"{title(description)}: {description['parameters']} parameters, {description['steps']} "
        f"steps{begin}, on {where}",
        f"to beat: {baseline(description)} ({description['baseline_rule']})",
    ]


def baseline(description: dict[str, Any]) -> str:
    """What the naive predictor gets."""
    scores = description["baseline"]
    split = "valid" if "valid" in scores else next(iter(scores))
    return f"baseline {number(scores[split][description['metric']['name']])}"


def sentence(record: dict[str, Any], metric: str) -> str:
    """A record in words."""
    where = f"step {record['step']}, epoch {record['epoch']:.2f}: "
    if record["kind"] == "event":
        return f"{where}{record['event']}: {record['message']}"
    if record["kind"] == "train":
        return f"{where}loss {number(record['loss'])}"
    scores = record["scores"].items()
    return where + ", ".join(f"{split} {metric} {number(s[metric])}" for split, s in scores)


def number(value: float) -> str:
    """Four digits.

    Example:
        >>> number(0.16666), number(97.312), number(1e-5)
        ('0.1667', '97.31', '1e-05')
    """
    return f"{value:.4g}"


def duration(seconds: float) -> str:
    """Hours, minutes and seconds.

    Example:
        >>> duration(3725.2)
        '1:02:05'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
