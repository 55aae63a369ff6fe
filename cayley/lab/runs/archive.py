"""Runs as they are kept for good: their numbers and curves, without weights."""

import json
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from cayley.lab.errors import RunError
from cayley.lab.runs.folders import Record
from cayley.lab.runs.reading import (
    check_metrics,
    explain_damage,
    read_metrics,
    read_result,
    read_run,
)
from cayley.lab.runs.seals import digest, seal_json

__all__ = ["archive_run", "thin"]

# what is kept as it is
WHOLE = ("recipe.toml", "run.json")
CURVES = ("train", "eval")


def thin(records: Iterable[Record], points: int) -> list[Record]:
    """At most so many records of each curve, evenly spaced, the first and the last among them.

    What is no point of a curve stays, and a curve that was thinned has one more record, which says
    so.

    Arguments:
        records: Those of a run.
        points: How many to keep of each curve, at least 2.

    Example:
        >>> records = [{"kind": "train", "step": k, "epoch": k / 4} for k in range(9)]
        >>> [record["step"] for record in thin(records, 3)]
        [0, 4, 8, 8]
    """
    records = list(records)
    left_out: set[int] = set()
    notes = []
    for kind in CURVES:
        places = [place for place, record in enumerate(records) if record["kind"] == kind]
        if len(places) > points:
            kept = {places[k * (len(places) - 1) // (points - 1)] for k in range(points)}
            left_out |= {*places} - kept
            notes.append(f"{len(kept)} of {len(places)} {kind} records")
    result = [record for place, record in enumerate(records) if place not in left_out]
    if notes:
        last = {key: records[-1][key] for key in ("step", "epoch")}
        result.append({"kind": "event", **last, "event": "thinned", "message": ", ".join(notes)})
    return result


def archive_run(folder: Path, target: Path, points: int = 300) -> None:
    """Copy a finished run without its checkpoint and weights.

    Arguments:
        folder: Of the run.
        target: The folder to make of it; one that is there is replaced.
        points: How many records to keep of each curve.
    """
    description, _ = read_run(folder)
    result = read_result(folder, description)
    check_metrics(folder, result)
    with explain_damage(folder, "metrics.jsonl"):
        lines = [json.dumps(record) + "\n" for record in thin(read_metrics(folder), points)]
    content = (folder / "result.json").read_text()
    if result.metrics:
        # the curves are others than those of the run
        sealed = seal_json(replace(result, metrics=digest(*lines)).to_json(), description.seal)
        content = json.dumps(sealed, indent=1) + "\n"
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name in WHOLE:
            shutil.copyfile(folder / name, target / name)
        (target / "metrics.jsonl").write_text("".join(lines))
        (target / "result.json").write_text(content)
    except OSError as error:
        raise RunError(
            f"could not write {target}: {error.strerror}: choose another place"
        ) from error
