"""Reporters show the progress of a run: as a bar, as lines, as JSON, or not at all."""

import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from cayley.lab.runs import Record, RunDescription, RunResult
from cayley.lab.training.clock import Clock
from cayley.lab.wording import short_number

if TYPE_CHECKING:
    from rich.progress import TaskID

__all__ = [
    "JSON",
    "Live",
    "Plain",
    "Quiet",
    "Reporter",
    "choose_reporter",
    "choose_reporters",
    "title",
]


class Reporter(ABC):
    """Shows what happens in a run."""

    @abstractmethod
    def begin(self, description: RunDescription, step: int, model: nn.Module) -> None:
        """A run starts, or continues after a step; the description is that in ``run.json``."""

    @abstractmethod
    def step(self, step: int, epoch: float) -> None:
        """A step is over."""

    @abstractmethod
    def evaluate(self, split: str, batch: int, batches: int) -> None:
        """An evaluation starts a batch, after ``batch`` of the ``batches`` of a split."""

    @abstractmethod
    def record(self, record: Record) -> None:
        """A line was added to the metrics."""

    @abstractmethod
    def end(self, result: RunResult | None) -> None:
        """The run is finished; None if it stopped before its end."""

    def found(self, description: RunDescription, result: RunResult) -> None:  # noqa: B027
        """The run was finished before, with this result; by default nothing is shown."""


class Quiet(Reporter):
    """Says nothing."""

    def begin(self, description: RunDescription, step: int, model: nn.Module) -> None:
        """Nothing."""

    def step(self, step: int, epoch: float) -> None:
        """Nothing."""

    def evaluate(self, split: str, batch: int, batches: int) -> None:
        """Nothing."""

    def record(self, record: Record) -> None:
        """Nothing."""

    def end(self, result: RunResult | None) -> None:
        """Nothing."""


class JSON(Reporter):
    """Prints JSON objects, one a line: the description, every record of the metrics, the result.

    Arguments:
        **tag: Added to every line, to tell the lines of several runs apart.
    """

    def __init__(self, **tag: Any) -> None:
        self.tag = tag

    def begin(self, description: RunDescription, step: int, model: nn.Module) -> None:
        """Print the description."""
        self._print({"kind": "run", "step": step, **description.to_json()})

    def step(self, step: int, epoch: float) -> None:
        """Nothing."""

    def evaluate(self, split: str, batch: int, batches: int) -> None:
        """Nothing."""

    def record(self, record: Record) -> None:
        """Print the record."""
        self._print(record)

    def end(self, result: RunResult | None) -> None:
        """Print the result."""
        if result is not None:
            self._print({"kind": "result", **result.to_json()})

    def found(self, description: RunDescription, result: RunResult) -> None:
        """Print the description and the result."""
        self._print({"kind": "run", "step": result.step, **description.to_json()})
        self.end(result)

    def _print(self, content: dict[str, Any]) -> None:
        print(json.dumps({**self.tag, **content}), flush=True)


class Plain(Reporter):
    """Prints a line for each evaluation, and one a minute in between, to standard error.

    Arguments:
        seconds: The time between two lines during training.
    """

    def __init__(self, seconds: float = 60.0) -> None:
        self.seconds = seconds

    def begin(self, description: RunDescription, step: int, model: nn.Module) -> None:
        """Print what the run is about."""
        self.title = title(description)
        self.metric = description.metric.name
        self.clock = Clock(step, description.steps)
        self.shown = time.monotonic()
        for line in headlines(description, step):
            self._print(line)

    def step(self, step: int, epoch: float) -> None:
        """Nothing, since records show enough."""

    def evaluate(self, split: str, batch: int, batches: int) -> None:
        """Print now and then how far the evaluation is."""
        self.clock.pause()
        now = time.monotonic()
        if now - self.shown >= self.seconds:
            self.shown = now
            self._print(evaluation_words(split, batch, batches))

    def record(self, record: Record) -> None:
        """Print evaluations and events, and some of the rest."""
        if record["kind"] == "eval":
            self.clock.go_on(record["step"])
        now = time.monotonic()
        if record["kind"] == "train" and now - self.shown < self.seconds:
            return
        self.shown = now
        left = self.clock.words(record["step"]) if record["kind"] != "event" else ""
        self._print(f"{sentence(record, self.metric)}{left and f'  ({left})'}")

    def end(self, result: RunResult | None) -> None:
        """Nothing, since the command prints the result."""

    def _print(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


class Live(Reporter):
    """Shows a bar with rate, time left, loss, metric and baseline, and evaluations above it."""

    def begin(self, description: RunDescription, step: int, model: nn.Module) -> None:
        """Show the bar."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self.metric = description.metric.name
        self.clock = Clock(step, description.steps)
        self.shown = 0.0
        self.loss, self.score = "", ""
        self.baseline = baseline(description)
        # names of metrics and messages may have brackets, which are no markup
        console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self.progress = Progress(
            TextColumn("{task.completed}/{task.total}"),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[words]}", markup=False),
            console=console,
            transient=True,
        )
        for line in headlines(description, step):
            console.print(line, soft_wrap=True)
        self.bar: TaskID = self.progress.add_task(
            "", total=description.steps, completed=step, words=""
        )
        self.progress.start()

    def step(self, step: int, epoch: float) -> None:
        """Move the bar, at most ten times a second."""
        if self._is_time():
            parts = (self.clock.words(step), self.loss, self.score, self.baseline)
            words = "  ".join(part for part in parts if part)
            self.progress.update(self.bar, completed=step, words=words)

    def evaluate(self, split: str, batch: int, batches: int) -> None:
        """Show beside the bar how far the evaluation is."""
        self.clock.pause()
        if self._is_time():
            self.progress.update(self.bar, words=evaluation_words(split, batch, batches))

    def record(self, record: Record) -> None:
        """Show evaluations and events above the bar, losses in it."""
        if record["kind"] == "train":
            self.loss = f"loss {short_number(record['loss'])}"
            return
        if record["kind"] == "eval":
            self.clock.go_on(record["step"])
            split = "valid" if "valid" in record["scores"] else next(iter(record["scores"]))
            self.score = (
                f"{split} {self.metric} {short_number(record['scores'][split][self.metric])}"
            )
        self.progress.console.print(sentence(record, self.metric), soft_wrap=True)

    def end(self, result: RunResult | None) -> None:
        """Remove the bar."""
        self.progress.stop()

    def _is_time(self) -> bool:
        """Whether the last update is a tenth of a second ago."""
        now = time.monotonic()
        due = now - self.shown >= 0.1
        self.shown = now if due else self.shown
        return due


def choose_reporter(quiet: bool, as_json: bool) -> Reporter:
    """The reporter for the options; by default a bar at a terminal, and lines elsewhere."""
    if as_json:
        return JSON()
    if quiet:
        return Quiet()
    return Live() if sys.stderr.isatty() else Plain()


def choose_reporters(quiet: bool, as_json: bool, folders: Sequence[Path]) -> list[Reporter]:
    """Reporters of runs that train together: JSON for all, or else only one run is shown."""
    if as_json:
        return [JSON(run=str(folder)) for folder in folders]
    reporters: list[Reporter] = [Quiet() for _ in folders]
    open = (k for k, folder in enumerate(folders) if not (folder / "result.json").exists())
    reporters[next(open, 0)] = choose_reporter(quiet, False)
    return reporters


def title(description: RunDescription) -> str:
    """Recipe, variant and seed."""
    variant = "" if description.variant == "paper" else f" ({description.variant})"
    return f"{description.recipe}{variant}, seed {description.seed}"


def headlines(description: RunDescription, step: int) -> list[str]:
    """A summary of a run, in two lines."""
    machine = description.machine
    threads = f"{machine.threads} thread{'' if machine.threads == 1 else 's'}"
    where = f"{machine.accelerator}, {machine.precision}, {threads}"
    where += ", steps as CUDA graphs" if machine.graph else ""
    where += f", no CUDA graphs: {machine.no_graph}" if machine.no_graph else ""
    where += f", {machine.processes} processes" if machine.processes > 1 else ""
    # a run may go on elsewhere, which its event then says
    begin = f", from step {step}, begun on" if step else ", on"
    return [
        f"{title(description)}: {description.parameters} parameters, {description.steps} "
        f"steps{begin} {where}",
        f"to beat: {baseline(description)} ({description.baseline_rule})",
    ]


def baseline(description: RunDescription) -> str:
    """The score of the naive predictor."""
    scores = description.baseline
    split = "valid" if "valid" in scores else next(iter(scores))
    return f"baseline {short_number(scores[split][description.metric.name])}"


def evaluation_words(split: str, batch: int, batches: int) -> str:
    """How far an evaluation is.

    Example:
        >>> evaluation_words("valid", 12, 100)
        'evaluating valid: 12 of 100 batches'
    """
    return f"evaluating {split}: {batch} of {batches} batches"


def sentence(record: Record, metric: str) -> str:
    """A record in words."""
    where = f"step {record['step']}, epoch {record['epoch']:.2f}: "
    if record["kind"] == "event":
        return f"{where}{record['event']}: {record['message']}"
    if record["kind"] == "train":
        return f"{where}loss {short_number(record['loss'])}"
    scores = record["scores"].items()
    return where + ", ".join(f"{split} {metric} {short_number(s[metric])}" for split, s in scores)
