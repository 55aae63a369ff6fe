"""Run folders read, with errors that name the file, what is wrong with it, and what to do."""

import json
import math
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from cayley.lab.errors import RecipeError, RunError
from cayley.lab.recipes import Recipe, read_recipe
from cayley.lab.runs.description import RunDescription
from cayley.lab.runs.result import RunResult

__all__ = [
    "explain_damage",
    "find_runs",
    "load_tensors",
    "parse_json",
    "read_metrics",
    "read_result",
    "read_run",
]

RETRAIN = "delete the folder, and train once more"
# of files that cannot be used
REMEDIES = {
    "checkpoint.pt": "delete it, and cayley resume starts over",
    "result.json": "delete it, and cayley resume ends the run once more",
}


def read_run(folder: Path) -> tuple[RunDescription, Recipe]:
    """The description and the recipe of a run.

    Arguments:
        folder: Of the run.
    """
    try:
        content = parse_json((folder / "run.json").read_bytes())
        recipe = read_recipe(tomllib.loads((folder / "recipe.toml").read_text()))
    except (OSError, ValueError) as error:
        raise RunError(
            f"expected a run in {folder}, with run.json and recipe.toml, got none: {error}"
        ) from error
    try:
        return RunDescription.parse(content), recipe
    except RecipeError as error:
        raise RunError(f"could not use {folder / 'run.json'}: {error}: {RETRAIN}") from None


def read_result(folder: Path) -> RunResult:
    """The numbers of a finished run.

    Arguments:
        folder: Of the run.
    """
    path = folder / "result.json"
    with explain_damage(folder, path.name):
        content = parse_json(path.read_bytes())
    try:
        return RunResult.parse(content)
    except RecipeError as error:
        raise RunError(f"could not use {path}: {error}: {REMEDIES[path.name]}") from None


def load_tensors(folder: Path, name: str) -> dict[str, Any]:
    """What :meth:`RunFolder.save` wrote, on the CPU."""
    with explain_damage(folder, name):
        return torch.load(folder / name, map_location="cpu", weights_only=True)


@contextmanager
def explain_damage(folder: Path, name: str) -> Iterator[None]:
    """Turn what goes wrong with a file's content into an error that names the file.

    Arguments:
        folder: Of the run.
        name: Of the file.
    """
    try:
        yield
    except RunError:
        raise
    except OSError as error:
        raise RunError(f"expected {name} in {folder}, got none: {error.strerror}") from error
    # torch has no error of its own for a file that is cut off, garbage, or of another model
    except Exception as error:
        # to have too little memory says nothing about the file
        if isinstance(error, MemoryError) or "allocate" in str(error):
            raise
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise RunError(
            f"could not use {folder / name}, which is damaged or of another run "
            f"({type(error).__name__}: {reason}): {REMEDIES.get(name, RETRAIN)}"
        ) from error


def read_metrics(folder: Path) -> Iterator[dict[str, Any]]:
    """The records of a run, those of a run that goes on included."""
    path = folder / "metrics.jsonl"
    if path.exists():
        for line in path.read_bytes().splitlines(keepends=True):
            # a line without an end is being written, or its writer was killed
            if line.endswith(b"\n"):
                yield json.loads(line)


def parse_json(text: bytes) -> Any:
    """JSON whose numbers are finite.

    Example:
        >>> parse_json(b'{"mse": 1e999}')
        Traceback (most recent call last):
        ...
        ValueError: expected finite numbers, got 1e999
    """

    def number(digits: str) -> float:
        value = float(digits)
        if not math.isfinite(value):
            raise ValueError(f"expected finite numbers, got {digits}")
        return value

    return json.loads(text, parse_constant=number, parse_float=number)


def find_runs(folder: Path) -> list[Path]:
    """The folders of all runs below a folder, in order."""
    return sorted(path.parent for path in folder.rglob("run.json"))
