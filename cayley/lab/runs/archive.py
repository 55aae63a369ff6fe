"""Runs as they are kept permanently: their numbers and curves, and weights on request."""

import gzip
import json
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from cayley.lab.errors import RunError
from cayley.lab.recipes import write_recipe
from cayley.lab.runs.description import RunDescription
from cayley.lab.runs.folders import Record
from cayley.lab.runs.reading import (
    THINNED,
    check_metrics,
    explain_damage,
    is_diverged,
    read_metrics,
    read_result,
    read_run,
)
from cayley.lab.runs.seals import digest, seal_json
from cayley.lab.runs.weights import (
    CARD_FILE,
    WEIGHTS_FILE,
    pack_weights,
    read_weights,
    write_card,
)

__all__ = ["archive_run", "check_archive", "thin"]


def thin(records: Iterable[Record], points: int, losses: int | None = None) -> list[Record]:
    """Some records of each curve, evenly spaced, including the first and the last.

    Records that are not points of a curve are kept. If a curve is thinned, a record that says so is
    added.

    Arguments:
        records: The records of a run.
        points: The number of evaluations to keep, at least 2. With few of them, it is less certain
            when a curve passed a level, which many claims are about.
        losses: The number of training losses to keep, at least 2; None for as many.

    Example:
        >>> records = [{"kind": "train", "step": k, "epoch": k / 4} for k in range(9)]
        >>> [record["step"] for record in thin(records, 3)]
        [0, 4, 8, 8]
    """
    records = list(records)
    left_out: set[int] = set()
    notes = []
    for kind, most in (("train", losses or points), ("eval", points)):
        places = [place for place, record in enumerate(records) if record["kind"] == kind]
        if len(places) > most:
            kept = {places[k * (len(places) - 1) // (most - 1)] for k in range(most)}
            left_out |= {*places} - kept
            notes.append(f"{len(kept)} of {len(places)} {kind} records")
    result = [record for place, record in enumerate(records) if place not in left_out]
    if notes:
        last = {key: records[-1][key] for key in ("step", "epoch")}
        result.append({"kind": "event", **last, "event": THINNED, "message": ", ".join(notes)})
    return result


def shorten(value: Any) -> Any:
    """A record with its numbers rounded to nine digits, which tell all of float32 apart.

    Arguments:
        value: What JSON holds.

    Example:
        >>> shorten({"step": 1234567890, "scores": {"mse": 0.123456789876}})
        {'step': 1234567890, 'scores': {'mse': 0.12345679}}
    """
    if isinstance(value, dict):
        return {key: shorten(part) for key, part in value.items()}
    return float(f"{value:.9g}") if isinstance(value, float) else value


def without_places(description: RunDescription) -> RunDescription:
    """A description without the host's name, and with only the last parts of absolute paths.

    Arguments:
        description: The description of a run.
    """

    def last_part(word: str) -> str:
        return Path(word).name if Path(word).is_absolute() else word

    data, machine = description.data, description.machine
    return replace(
        description,
        data=replace(data, folder=last_part(data.folder) if data.folder else data.folder),
        machine=replace(machine, host=""),
        command=tuple(map(last_part, description.command)),
    )


def check_archive(target: Path) -> None:
    """Raise unless a folder is new or empty, or holds an archived run, whose files are replaced.

    Arguments:
        target: The folder of an archived run, or where one shall be.
    """
    # the lock file is that of a run that can continue
    archived = (target / "run.json").exists() and not (target / "lock").exists()
    if target.is_dir() and any(target.iterdir()) and not archived:
        raise RunError(
            f"expected a new folder for the archive, or one with an archived run, got {target} "
            "with other files, of which some would be deleted: choose another --output"
        )


def archive_run(
    folder: Path,
    target: Path,
    points: int = 300,
    losses: int | None = None,
    *,
    weights: bool = False,
) -> None:
    """Copy a run that has ended, without checkpoint, sound and private data; metrics compressed.

    Arguments:
        folder: The run folder.
        target: The new folder; an archived run that is there is replaced.
        points: The number of evaluations to keep.
        losses: The number of training losses to keep; None for as many.
        weights: Whether to copy the weights behind the run's numbers too, with a model card.
    """
    check_archive(target)
    description, recipe = read_run(folder)
    result = None if is_diverged(folder) else read_result(folder, description)
    packed = b""
    if weights and result is not None:
        packed = pack_weights(read_weights(folder, description, recipe).tensors, description)
    if result is not None:
        check_metrics(folder, result)
    with explain_damage(folder, "metrics.jsonl"):
        records = [shorten(record) for record in thin(read_metrics(folder), points, losses)]
    lines = [json.dumps(record, separators=(",", ":")) + "\n" for record in records]
    files = {"run.json": without_places(description).to_json()}
    if result is not None:
        result = replace(
            result,
            metrics=digest(*lines) if result.metrics else "",
            weights=digest(packed) if packed else "",
        )
        files["result.json"] = result.to_json()
    try:
        target.mkdir(parents=True, exist_ok=True)
        # what the new one may not have
        for pattern in ("sample*.txt", "metrics.jsonl", "result.json", WEIGHTS_FILE, CARD_FILE):
            for path in target.glob(pattern):
                path.unlink()
        # without the sound, which may be the voice of a real person
        for path in folder.glob("sample*.txt"):
            shutil.copyfile(path, target / path.name)
        settings = description.settings or write_recipe(recipe)
        (target / "recipe.toml").write_text(settings, encoding="utf-8")
        curves = gzip.compress("".join(lines).encode(), mtime=0)
        (target / "metrics.jsonl.gz").write_bytes(curves)
        for name, content in files.items():
            if description.format > 1:
                content = seal_json(content, description.seal)
            (target / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        if packed and result is not None:
            (target / WEIGHTS_FILE).write_bytes(packed)
            write_card(target, description, result)
    except OSError as error:
        raise RunError(
            f"could not write {target}: {error.strerror}: choose another place"
        ) from error
