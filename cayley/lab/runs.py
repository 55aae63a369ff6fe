"""Run folders: what a run leaves behind, written so that no moment is a bad one to be killed."""

import errno
import fcntl
import io
import json
import os
import socket
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from cayley.lab.errors import RunError
from cayley.lab.schema import Recipe, read_recipe, write_recipe

__all__ = ["Run", "find_runs", "load", "read_metrics", "read_run", "usable"]

# of files that cannot be used
REMEDIES = {
    "checkpoint.pt": "delete it, and cayley resume starts over",
    "result.json": "delete it, and cayley resume ends the run once more",
}


class Run:
    """The folder of a run, held by the one process that writes it.

    ==================== ==========================================================
    ``run.json``         what was started, on what; a folder with it is a run
    ``recipe.toml``      the recipe with all settings
    ``metrics.jsonl``    a record a line
    ``checkpoint.pt``    everything to go on from
    ``best-valid.pt``    weights of the best evaluation by a split; likewise ``best-test.pt``
    ``result.json``      the numbers; there once the run is finished
    ``lock``             locked by the process that writes
    ==================== ==========================================================

    Files are replaced as a whole or, if the disk is full, not at all.

    Arguments:
        folder: Made if it does not exist.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder, Run(Path(folder, "run")) as run:
        ...     run.save("checkpoint.pt", {"step": 3})
        ...     load(run.folder, "checkpoint.pt")
        {'step': 3}
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # without O_TRUNC: another process may have written its name
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise RunError(
                f"could not write {folder}: {error.strerror}. Nothing was written: make room or "
                "get the permission, or choose another --output"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(self._lock, 200).decode(errors="replace")
            os.close(self._lock)
            raise RunError(
                f"expected {folder} to be free, but {owner or 'another process'} writes it: wait "
                "for it, or choose another folder with --output"
            ) from error
        os.ftruncate(self._lock, 0)
        os.write(self._lock, f"process {os.getpid()} on {socket.gethostname()}".encode())
        self._metrics = -1

    def __enter__(self) -> "Run":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._metrics >= 0:
            os.close(self._metrics)
        os.close(self._lock)

    def begin(self, recipe: Recipe, description: dict[str, Any]) -> None:
        """Make it a run: write the recipe and, last, the description."""
        self.write("recipe.toml", write_recipe(recipe).encode())
        self.write_json("run.json", description)

    def write(self, name: str, content: bytes | memoryview) -> None:
        """Replace a file as a whole."""
        part = self.folder / f".{name}.part"
        try:
            with open(part, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, self.folder / name)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise _unwritable(self.folder / name, error) from error

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Replace a file by JSON; numbers must be finite."""
        self.write(name, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())

    def save(self, name: str, state: dict[str, Any]) -> None:
        """Replace a file by tensors, numbers and words, readable with ``weights_only=True``."""
        # through memory: torch.save turns a full disk into an error without its reason
        buffer = io.BytesIO()
        torch.save(state, buffer)
        self.write(name, buffer.getbuffer())

    def read_json(self, name: str) -> dict[str, Any]:
        """What :meth:`write_json` wrote."""
        with usable(self.folder, name):
            return json.loads((self.folder / name).read_text())

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        return (self.folder / name).exists()

    def record(self, record: dict[str, Any]) -> None:
        """Append a line to the metrics."""
        line = (json.dumps(record, allow_nan=False) + "\n").encode()
        try:
            if os.write(self._open_metrics(), line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise _unwritable(self.folder / "metrics.jsonl", error) from error

    def mark(self) -> int:
        """How long the metrics are by now, which are safe on the disk."""
        file = self._open_metrics()
        os.fsync(file)
        return os.fstat(file).st_size

    def rewind(self, mark: int) -> None:
        """Forget what was appended to the metrics after a mark."""
        os.ftruncate(self._open_metrics(), mark)

    def _open_metrics(self) -> int:
        if self._metrics < 0:
            path = self.folder / "metrics.jsonl"
            try:
                self._metrics = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            except OSError as error:
                raise _unwritable(path, error) from error
        return self._metrics


def _unwritable(path: Path, error: OSError) -> RunError:
    return RunError(
        f"could not write {path}: {error.strerror}. What was written before is intact: make room "
        "or get the permission, then go on with cayley resume, or choose another --output"
    )


def load(folder: Path, name: str) -> dict[str, Any]:
    """What :meth:`Run.save` wrote, on the CPU."""
    with usable(folder, name):
        return torch.load(folder / name, map_location="cpu", weights_only=True)


@contextmanager
def usable(folder: Path, name: str) -> Iterator[None]:
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
        remedy = REMEDIES.get(name, "delete the folder, and train once more")
        raise RunError(
            f"could not use {folder / name}, which is damaged or of another run "
            f"({type(error).__name__}: {reason}): {remedy}"
        ) from error


def read_run(folder: Path) -> tuple[dict[str, Any], Recipe]:
    """The description and the recipe of a run.

    Arguments:
        folder: Of the run.
    """
    try:
        description = json.loads((folder / "run.json").read_text())
        recipe = read_recipe(tomllib.loads((folder / "recipe.toml").read_text()))
    except (OSError, ValueError) as error:
        raise RunError(
            f"expected a run in {folder}, with run.json and recipe.toml, got none: {error}"
        ) from error
    return description, recipe


def read_metrics(folder: Path) -> Iterator[dict[str, Any]]:
    """The records of a run, those of a run that goes on included."""
    path = folder / "metrics.jsonl"
    if path.exists():
        for line in path.read_bytes().splitlines(keepends=True):
            # a line without an end is being written, or its writer was killed
            if line.endswith(b"\n"):
                yield json.loads(line)


def find_runs(folder: Path) -> list[Path]:
    """The folders of all runs below a folder, in order."""
    return sorted(path.parent for path in folder.rglob("run.json"))
