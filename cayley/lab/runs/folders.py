"""Run folders: what a run leaves behind, written so that it may be killed at any moment."""

import errno
import fcntl
import io
import json
import os
import socket
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from cayley.lab.errors import RunError
from cayley.lab.recipes import Recipe, write_recipe
from cayley.lab.runs.description import RunDescription
from cayley.lab.runs.result import RunResult

__all__ = ["Record", "RunFolder"]

Record = dict[str, Any]


class RunFolder:
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
        >>> from cayley.lab.runs import load_tensors
        >>> with TemporaryDirectory() as folder, RunFolder(Path(folder, "run")) as run:
        ...     run.save("checkpoint.pt", {"step": 3})
        ...     load_tensors(run.folder, "checkpoint.pt")
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

    def __enter__(self) -> "RunFolder":
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

    def begin(self, recipe: Recipe, description: RunDescription) -> None:
        """Make it a run: write the recipe and, last, the description."""
        self.write("recipe.toml", write_recipe(recipe).encode())
        self.write_json("run.json", description.to_json())

    def finish(self, result: RunResult) -> None:
        """Make it a finished run: write its numbers."""
        self.write_json("result.json", result.to_json())

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

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        return (self.folder / name).exists()

    def record(self, record: Record) -> None:
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
