"""Reading run folders, with errors that name the file, what is wrong, and what to do."""

import gzip
import io
import json
import math
import re
import tomllib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cayley.lab.errors import RecipeError, RunError
from cayley.lab.recipes import Recipe, edits, read_recipe, write_recipe
from cayley.lab.runs.description import FORMAT, RunDescription
from cayley.lab.runs.result import RunResult
from cayley.lab.runs.seals import Seal, digest, open_bytes, open_json

__all__ = [
    "CRASHED",
    "NOT_FINITE",
    "THINNED",
    "check_format",
    "check_metrics",
    "explain_damage",
    "find_runs",
    "is_diverged",
    "load_tensors",
    "metrics_content",
    "parse_json",
    "read_edited_run",
    "read_metrics",
    "read_result",
    "read_run",
    "remedy_of",
]

# the last event of a run that diverged, and of one that an error of Python or torch ended
NOT_FINITE = "not finite"
CRASHED = "error"
# an event of the archive, not of the run: it says nothing about how the run ended
THINNED = "thinned"
RETRAIN = "delete the folder, and train once more"
# where a number may be too large for a float
LARGE = re.compile(rb"[eE]\+?\d{3}|\d{300}")
# what to do about files that cannot be used
REMEDIES = {
    "checkpoint.pt": "delete it, and cayley resume starts over",
    "result.json": "delete it, and cayley resume ends the run once more",
}


def read_run(folder: Path) -> tuple[RunDescription, Recipe]:
    """The description and the recipe of a run; raise if the recipe was changed after the start.

    Arguments:
        folder: The folder of the run.
    """
    description, recipe, found = read_edited_run(folder)
    if write_recipe(found) != write_recipe(recipe):
        words = "; ".join(edits(found, recipe))
        raise RunError(
            f"could not use {folder / 'recipe.toml'}, which was changed after the run's start "
            f"({words}): undo the change, or delete the file to use the original recipe. To "
            f"continue with the change: cayley resume {folder} --continue-with"
        )
    return description, recipe


def read_edited_run(folder: Path) -> tuple[RunDescription, Recipe, Recipe]:
    """The description of a run, its recipe, and what ``recipe.toml`` says now.

    Arguments:
        folder: The folder of the run.
    """
    try:
        content = parse_json((folder / "run.json").read_bytes())
    except (OSError, ValueError) as error:
        raise RunError(
            f"expected a run in {folder}, with run.json and recipe.toml, got none: {error}"
        ) from error
    path = folder / "run.json"
    try:
        description = RunDescription.parse(content)
    except RecipeError as error:
        raise RunError(f"could not use {path}: {error}: {RETRAIN}") from None
    if description.format > 1:
        _check_seal(path, content, description)
    path, settings = folder / "recipe.toml", description.settings
    try:
        # in format 2, a missing recipe is replaced by that of run.json
        text = settings
        if path.exists() or not settings:
            text = path.read_text(encoding="utf-8")
        found = read_recipe(tomllib.loads(text))
    except (OSError, RecursionError, ValueError) as error:
        remedy = "delete it to use the original recipe" if settings else RETRAIN
        raise RunError(f"could not use {path}: {error}: {remedy}") from error
    return description, read_recipe(tomllib.loads(settings)) if settings else found, found


def read_result(folder: Path, description: RunDescription | None = None) -> RunResult:
    """The numbers of a finished run.

    Arguments:
        folder: The folder of the run.
        description: The description of the run; None to take a result of any run.
    """
    path = folder / "result.json"
    with explain_damage(folder, path.name):
        content = parse_json(path.read_bytes())
    try:
        result = RunResult.parse(content)
    except RecipeError as error:
        raise RunError(f"could not use {path}: {error}: {REMEDIES[path.name]}") from None
    if "seal" in content or (description is not None and description.format > 1):
        _check_seal(path, content, description)
    return result


def load_tensors(
    folder: Path, name: str, description: RunDescription | None = None
) -> dict[str, Any]:
    """What :meth:`RunFolder.save` wrote, on the CPU.

    Arguments:
        folder: The folder of the run.
        name: The name of the file.
        description: The description of the run; None to take a file of any run.
    """
    import torch

    path = folder / name
    with explain_damage(folder, name):
        content = path.read_bytes()
    if description is not None:
        check_format(path, description)
    try:
        body, seal = open_bytes(content)
    except ValueError as error:
        raise _damaged(path, error) from None
    _check_owner(path, seal, description)
    with explain_damage(folder, name):
        return torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)


def check_format(path: Path, description: RunDescription) -> None:
    """Raise if a run is too old to continue.

    Arguments:
        path: The file that it would continue from.
        description: The description of the run.
    """
    if description.format < FORMAT:
        version = description.versions.get("cayley", "of then")
        raise RunError(
            f"could not use {path}, which is old: it was written by cayley {version} in format "
            f"{description.format}, without a checksum, and this version can continue runs of "
            f"format {FORMAT} only: use that version, or {RETRAIN}"
        )


def _check_seal(path: Path, content: Any, description: RunDescription | None) -> None:
    """Raise unless JSON is as it was written, and belongs to a run."""
    try:
        seal = open_json(content)
    except ValueError as error:
        raise _damaged(path, error) from None
    _check_owner(path, seal, description)


def _check_owner(path: Path, seal: Seal, description: RunDescription | None) -> None:
    if description is not None and not description.owns(seal):
        what = "another recipe" if seal.run == description.id else f"another run, {seal.run[:8]}"
        raise RunError(
            f"could not use {path}, which is of {what}, not of the run {description.id[:8]} that "
            f"run.json describes: restore the run's own file, or {remedy_of(path)}"
        )


def _damaged(path: Path, error: ValueError) -> RunError:
    return RunError(
        f"could not use {path}, which is damaged or was changed by hand: {error}: {remedy_of(path)}"
    )


def remedy_of(path: Path) -> str:
    """What to do about a file of a run that cannot be used."""
    # a finished run does not start over
    if path.name == "checkpoint.pt" and (path.parent / "result.json").exists():
        return RETRAIN
    return REMEDIES.get(path.name, RETRAIN)


@contextmanager
def explain_damage(folder: Path, name: str) -> Iterator[None]:
    """Turn errors about a file's content into errors that name the file.

    Arguments:
        folder: The folder of the run.
        name: The name of the file.
    """
    try:
        yield
    except RunError:
        raise
    except OSError as error:
        raise RunError(f"expected {name} in {folder}, got none: {error.strerror}") from error
    # torch has no error of its own for a file that is cut off, garbage, or of another model
    except Exception as error:
        # too little memory says nothing about the file
        if isinstance(error, MemoryError) or "allocate" in str(error):
            raise
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise RunError(
            f"could not use {folder / name}, which is damaged or of another run "
            f"({type(error).__name__}: {reason}): {remedy_of(folder / name)}"
        ) from error


def check_metrics(folder: Path, result: RunResult) -> None:
    """Raise unless the metrics are those that a finished run wrote.

    Arguments:
        folder: The folder of the run.
        result: The result of the run.
    """
    content = metrics_content(folder)
    if result.metrics and content is not None and digest(content) != result.metrics:
        raise _other_metrics(_metrics_path(folder))


def read_metrics(folder: Path) -> Iterator[dict[str, Any]]:
    """The records of a run, also of one that is still running."""
    for line in (metrics_content(folder) or b"").splitlines(keepends=True):
        # an incomplete line is being written, or its writer was killed
        if line.endswith(b"\n"):
            yield json.loads(line)


def metrics_content(folder: Path) -> bytes | None:
    """What ``metrics.jsonl`` says, which is compressed in archives; None if there is none."""
    path = _metrics_path(folder)
    if not path.exists():
        return None
    content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise _other_metrics(path) from error
    return content


def _metrics_path(folder: Path) -> Path:
    path, compressed = folder / "metrics.jsonl", folder / "metrics.jsonl.gz"
    return compressed if compressed.exists() and not path.exists() else path


def _other_metrics(path: Path) -> RunError:
    return RunError(
        f"could not use {path}, which is damaged, was changed by hand or is of another run: "
        f"restore the run's own file, or {RETRAIN}"
    )


def is_diverged(folder: Path) -> bool:
    """Whether a run is over because its loss or its weights were not finite."""
    if (folder / "result.json").exists():
        return False
    with explain_damage(folder, "metrics.jsonl"):
        records = [record for record in read_metrics(folder) if record["kind"] == "event"]
        events = [record["event"] for record in records if record["event"] != THINNED]
        return bool(events) and events[-1] == NOT_FINITE


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

    # a function for every number makes reading three times as slow
    parse_float = number if LARGE.search(text) else None
    try:
        return json.loads(text, parse_constant=number, parse_float=parse_float)
    except RecursionError:
        raise ValueError("expected JSON, got brackets that are nested too deeply") from None


def find_runs(folder: Path) -> list[Path]:
    """The folders of all runs below a folder, in order."""
    return sorted(path.parent for path in folder.rglob("run.json"))
