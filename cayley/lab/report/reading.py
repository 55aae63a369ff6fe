"""Run folders read: finished runs, unfinished ones, and those that are damaged."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from cayley.lab import published
from cayley.lab.errors import RecipeError, RunError
from cayley.lab.reading import read
from cayley.lab.report.accounts import Account, Description, Outcome, Problem, Selected
from cayley.lab.runs import find_runs, read_run
from cayley.lab.schema import Recipe

__all__ = ["find_published", "read_runs"]

FORMAT = 1


@dataclass
class _Metrics:
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    step: int = 0
    event: str = ""
    faults: list[str] = field(default_factory=list)


def read_runs(folders: Iterable[Path]) -> tuple[list[Account], list[Problem]]:
    """Read all runs below some folders.

    Arguments:
        folders: Where to look; a run that is below several is read once.

    Returns:
        The accounts in order of their folders, and a problem for each fault of each run.
    """
    accounts, problems = [], []
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
            account = read_account(path)
        except (RunError, RecipeError) as error:
            problems.append(Problem(path, f"left out: {error}"))
            continue
        accounts.append(account)
        problems += [Problem(path, fault) for fault in account.faults]
    return accounts, problems


def read_account(folder: Path) -> Account:
    """Read one run; raise if its description or its recipe cannot be read."""
    content, recipe = read_run(folder)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise RunError(f"run.json: expected a table with format = {FORMAT}, got {content!r:.60}")
    description = _take(Description, content, "run.json")
    try:
        for scores in description.baseline.values():
            _check_scores(scores)
    except (AttributeError, ValueError) as error:
        raise RunError(f"run.json: baseline: {error}") from error
    metrics = _read_metrics(folder / "metrics.jsonl", description.metric.name)
    outcome = None
    faults = metrics.faults
    path = folder / "result.json"
    if path.exists():
        try:
            outcome = _read_outcome(path)
        except (OSError, ValueError) as error:
            faults.append(f"not in the averages: result.json is damaged: {error}")
    else:
        event = f"; {metrics.event}" if metrics.event else ""
        faults.append(f"not finished: step {metrics.step} of {description.steps}{event}")
    faults += [
        f"published number {name!r} is not known here: the run is of another version of cayley"
        for name in recipe.reported
        if name not in published.results()
    ]
    return Account(
        folder,
        recipe,
        description,
        tuple(metrics.evaluations),
        metrics.step,
        outcome,
        tuple(faults),
    )


def find_published(recipe: Recipe) -> list[published.Result]:
    """The published numbers of a recipe that are known here."""
    known = published.results()
    return [known[name] for name in recipe.reported if name in known]


def _read_outcome(path: Path) -> Outcome:
    content = _parse(path.read_bytes())
    selected = content.get("selected")
    if not isinstance(selected, dict):
        raise RecipeError(f"selected: expected a table, got {selected!r}")
    chosen = {split: _take(Selected, one, f"selected.{split}") for split, one in selected.items()}
    outcome = _take(Outcome, content | {"selected": chosen}, "result.json")
    for scores in (outcome.audio or {}, *(one.scores for one in chosen.values())):
        _check_scores(scores)
    return outcome


def _read_metrics(path: Path, metric: str) -> _Metrics:
    """The records of a run; lines that are none are named, not passed over."""
    metrics = _Metrics()
    if not path.exists():
        metrics.faults.append("metrics.jsonl is missing: there is no curve to draw")
        return metrics
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        try:
            record = _parse(line)
            kind, metrics.step = record["kind"], int(record["step"])
            if kind == "eval":
                _check_scores({"epoch": record["epoch"]})
                if not record["scores"]:
                    raise ValueError("expected scores, got none")
                for scores in record["scores"].values():
                    _check_scores(scores, metric)
                metrics.evaluations.append(record)
            elif kind == "event":
                metrics.event = f"{record['event']}: {record['message']}"
        except (AttributeError, KeyError, TypeError, ValueError):
            # a line without an end is being written, or its writer was killed
            what = "is damaged" if line.endswith(b"\n") else "is only half written"
            metrics.faults.append(f"line {number} of metrics.jsonl {what} and left out")
    return metrics


def _check_scores(scores: dict[str, Any], metric: str | None = None) -> None:
    """Raise unless scores are finite numbers, that of a metric among them."""
    if metric is not None and metric not in scores:
        raise ValueError(f"expected a score {metric}, got {list(scores)}")
    for name, value in scores.items():
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ValueError(f"{name}: expected a finite number, got {value!r}")


def _take(kind: type[Any], content: Any, where: str) -> Any:
    """A dataclass from those keys of a table that it knows."""
    if not isinstance(content, dict):
        raise RecipeError(f"{where}: expected a table, got {content!r}")
    known = {f.name: content[f.name] for f in fields(kind) if f.name in content}
    try:
        return read(kind, known)
    except RecipeError as error:
        raise RecipeError(f"{where}: {error}") from None


def _parse(text: bytes) -> dict[str, Any]:
    """JSON of finite numbers."""

    def refuse(constant: str) -> None:
        raise ValueError(f"expected finite numbers, got {constant}")

    content = json.loads(text, parse_constant=refuse)
    if not isinstance(content, dict):
        raise ValueError(f"expected a table, got {content!r}")
    return content
