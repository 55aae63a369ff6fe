"""Reading run folders for a report: finished, unfinished and damaged runs."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cayley.lab.errors import RecipeError, RunError
from cayley.lab.recipes import Recipe, published
from cayley.lab.report.samples import Sample, read_samples
from cayley.lab.runs import (
    NOT_FINITE,
    THINNED,
    Record,
    RunDescription,
    RunResult,
    check_metrics,
    find_runs,
    metrics_content,
    parse_json,
    read_result,
    read_run,
)

__all__ = ["MeasuredRun", "Problem", "find_published", "read_runs"]


@dataclass(frozen=True)
class MeasuredRun:
    """A run as read from its folder.

    Attributes:
        folder: The folder of the run.
        recipe: With all settings.
        description: What was started, and on which machine.
        evaluations: The records of evaluations, in order.
        step: The step of the last record.
        result: The numbers; None unless the run is finished.
        faults: What is missing or damaged, in words.
        diverged: Whether it ended because something was not finite.
        samples: Text or sound of its network.
    """

    folder: Path
    recipe: Recipe
    description: RunDescription
    evaluations: tuple[Record, ...] = ()
    step: int = 0
    result: RunResult | None = None
    faults: tuple[str, ...] = ()
    diverged: bool = False
    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True)
class Problem:
    """A run that does not, or not fully, enter the numbers, and why."""

    folder: Path
    reason: str


@dataclass
class _Metrics:
    evaluations: list[Record] = field(default_factory=list)
    step: int = 0
    event: str = ""
    faults: list[str] = field(default_factory=list)


def read_runs(folders: Iterable[Path]) -> tuple[list[MeasuredRun], list[Problem]]:
    """Read all runs below some folders.

    Arguments:
        folders: The folders; a run that is below several of them is read once.

    Returns:
        The runs in order of their folders, and a problem for each fault of each run.
    """
    runs, problems = [], []
    found: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise RunError(
                f"expected a folder of runs, got {folder}: give the --output of training"
            )
        for path in find_runs(folder):
            found.setdefault(path.resolve(), path)
    for path in found.values():
        try:
            run = read_measured(path)
        except (RunError, RecipeError) as error:
            problems.append(Problem(path, f"left out: {error}"))
            continue
        runs.append(run)
        problems += [Problem(path, fault) for fault in run.faults]
    return runs, problems


def read_measured(folder: Path) -> MeasuredRun:
    """Read one run; raise if its description or its recipe cannot be read."""
    description, recipe = read_run(folder)
    metrics = _read_metrics(metrics_content(folder), description.metric.name)
    result = None
    faults = metrics.faults
    if (folder / "result.json").exists():
        try:
            result = read_result(folder, description)
            check_metrics(folder, result)
        except RunError as error:
            averages = "" if result is not None else "not in the averages: "
            faults.append(f"{averages}{error}")
    else:
        event = f"; {metrics.event}" if metrics.event else ""
        faults.append(f"not finished: step {metrics.step} of {description.steps}{event}")
    faults += [
        f"published number {name!r} is not known here: the run is of another version of cayley"
        for name in recipe.reported
        if name not in published.results()
    ]
    return MeasuredRun(
        folder,
        recipe,
        description,
        tuple(metrics.evaluations),
        metrics.step,
        result,
        tuple(faults),
        result is None and metrics.event.startswith(NOT_FINITE),
        read_samples(folder),
    )


def find_published(recipe: Recipe) -> list[published.PublishedResult]:
    """The published numbers of a recipe that are known here."""
    known = published.results()
    return [known[name] for name in recipe.reported if name in known]


def _read_metrics(content: bytes | None, metric: str) -> _Metrics:
    """The records of a run; lines that are not records are reported, not ignored."""
    metrics = _Metrics()
    if content is None:
        metrics.faults.append("metrics.jsonl is missing: there is no curve to draw")
        return metrics
    lines = content.splitlines(keepends=True)
    whole = _parse_together(lines)
    for number, line in enumerate(lines, 1):
        try:
            record = parse_json(line) if whole is None else whole[number - 1]
            kind, metrics.step = record["kind"], int(record["step"])
            if kind == "eval":
                _check_scores({"epoch": record["epoch"]}, "epoch")
                if not record["scores"]:
                    raise ValueError("expected scores, got none")
                for scores in record["scores"].values():
                    _check_scores(scores, metric)
                metrics.evaluations.append(record)
            elif kind == "event" and record["event"] != THINNED:
                metrics.event = f"{record['event']}: {record['message']}"
        except (AttributeError, KeyError, TypeError, ValueError):
            # an incomplete line is being written, or its writer was killed
            what = "is damaged" if line.endswith(b"\n") else "is only half written"
            metrics.faults.append(f"line {number} of metrics.jsonl {what} and left out")
    return metrics


def _parse_together(lines: list[bytes]) -> list[Any] | None:
    """The records of all lines, three times as fast as one by one; None if a line is damaged."""
    try:
        records = parse_json(b"[" + b",".join(lines) + b"]")
    except ValueError:
        return None
    return records if len(records) == len(lines) else None


def _check_scores(scores: dict[str, Any], metric: str) -> None:
    """Raise unless scores are numbers, including that of a metric."""
    if metric not in scores:
        raise ValueError(f"expected a score {metric}, got {list(scores)}")
    for name, value in scores.items():
        if type(value) not in (int, float):
            raise ValueError(f"{name}: expected a number, got {value!r}")
