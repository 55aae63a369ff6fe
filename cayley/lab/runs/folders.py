"""Run folders: the files of a run, written so that it may be killed at any moment."""

import errno
import fcntl
import hashlib
import io
import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from cayley.lab.errors import RunError
from cayley.lab.runs.description import RunDescription
from cayley.lab.runs.reading import explain_damage, load_tensors, remedy_of
from cayley.lab.runs.result import RunResult
from cayley.lab.runs.seals import Seal, digest, make_trailer, seal_json

__all__ = ["Mark", "Record", "RunFolder"]

Record = dict[str, Any]


@dataclass(frozen=True)
class Mark:
    """A position in the metrics: the number of bytes before it, and their SHA-256."""

    size: int = 0
    sha256: str = digest("")


class RunFolder:
    """The folder of a run, locked by the one process that writes it.

    ==================== ==========================================================
    ``run.json``         what was started, on which machine; it makes a folder a run
    ``recipe.toml``      the recipe with all settings
    ``metrics.jsonl``    one record per line
    ``checkpoint.pt``    everything needed to continue
    ``best-valid.pt``    weights of the best evaluation by a split; also ``best-test.pt``
    ``result.json``      the numbers; exists once the run is finished
    ``lock``             locked by the process that writes
    ==================== ==========================================================

    Files are replaced as a whole or, if the disk is full, not at all. Each holds the id of the run,
    the digest of its recipe and a checksum; those of the metrics are in checkpoint and result.

    Arguments:
        folder: Made if it does not exist.

    Attributes:
        description: The description of the run that the files belong to; None if there is none yet.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder, RunFolder(Path(folder, "run")) as run:
        ...     run.save("checkpoint.pt", {"step": 3})
        ...     run.load("checkpoint.pt")
        {'step': 3}
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.description: RunDescription | None = None
        self._metrics = -1
        self._hash = hashlib.sha256()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # without O_TRUNC: another process may have written its name
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise _unusable(folder, error) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(self._lock, 200).decode(errors="replace")
            os.close(self._lock)
            raise RunError(
                f"expected {folder} to be free, but {owner or 'another process'} is writing it: "
                "wait for it, or choose another folder with --output"
            ) from error
        try:
            os.ftruncate(self._lock, 0)
            os.write(self._lock, f"process {os.getpid()} on {socket.gethostname()}".encode())
        except OSError as error:
            os.close(self._lock)
            raise _unusable(folder, error) from error

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

    @property
    def seal(self) -> Seal:
        """The seal of the files."""
        return Seal() if self.description is None else self.description.seal

    def begin(self, description: RunDescription) -> None:
        """Make it a run: write the recipe and, last, the description."""
        for name in ("result.json", "checkpoint.pt"):
            if self.has(name):
                raise RunError(
                    f"expected a folder without a run, got {self.folder} with {name} of a run "
                    "whose run.json is gone: delete the folder, or choose another --output"
                )
        self.description = description
        self.rewind(Mark())
        self.write("recipe.toml", description.settings.encode())
        self.write_json("run.json", description.to_json())

    def change(self, description: RunDescription) -> None:
        """Give the run another recipe; it is then no longer finished, and has no samples."""
        samples = [
            one.name for kind in ("txt", "wav") for one in self.folder.glob(f"sample*.{kind}")
        ]
        # if the process is killed after removing these, the run is still valid: its recipe is
        # that of run.json, and it finishes again
        for name in ("result.json", "recipe.toml", *samples):
            self._remove(name)
        self.description = description
        self.write_json("run.json", description.to_json())
        self.write("recipe.toml", description.settings.encode())

    def finish(self, result: RunResult) -> None:
        """Make it a finished run: write its numbers."""
        self.write_json("result.json", result.to_json())

    def write(self, name: str, *parts: bytes | memoryview) -> None:
        """Replace a file as a whole."""
        part = self.folder / f".{name}.part"
        try:
            with open(part, "wb") as file:
                for content in parts:
                    file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, self.folder / name)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise _unwritable(self.folder / name, error) from error

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Replace a file by JSON with a seal; numbers must be finite."""
        sealed = seal_json(content, self.seal)
        self.write(name, (json.dumps(sealed, indent=1, allow_nan=False) + "\n").encode())

    def save(self, name: str, state: dict[str, Any]) -> None:
        """Replace a file by tensors, numbers and words, with a seal at its end.

        :func:`torch.load` reads it with ``weights_only=True``, and ignores the seal.
        """
        import torch

        # through memory: if the disk is full, the error of torch.save does not say so
        buffer = io.BytesIO()
        torch.save(state, buffer)
        content = buffer.getbuffer()
        self.write(name, content, make_trailer(content, self.seal))

    def load(self, name: str) -> dict[str, Any]:
        """What :meth:`save` wrote; raise if it is damaged or belongs to another run."""
        return load_tensors(self.folder, name, self.description)

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
        self._hash.update(line)

    def mark(self) -> Mark:
        """The current end of the metrics, after writing them to the disk."""
        file = self._open_metrics()
        os.fsync(file)
        return Mark(os.fstat(file).st_size, self._hash.hexdigest())

    def rewind(self, mark: Mark, step: int = -1) -> None:
        """Drop what came after a checkpoint; raise if the metrics before it have changed.

        Arguments:
            mark: The end of the metrics at the checkpoint.
            step: The step of the checkpoint. Of the best weights, those of later steps belong to
                numbers that are dropped; a run with other settings may never replace them.
        """
        for path in sorted(self.folder.glob("best-*.pt")):
            with explain_damage(self.folder, path.name):
                is_later = step < 0 or self.load(path.name)["step"] > step
            if is_later:
                self._remove(path.name)
        file = self._open_metrics()
        content = os.pread(file, mark.size, 0)
        if digest(content) != mark.sha256:
            path, size = self.folder / "metrics.jsonl", os.fstat(file).st_size
            raise RunError(
                f"expected {path} to begin with the {mark.size} bytes that the checkpoint was made "
                f"after, got {'others' if size >= mark.size else f'only {size}'}: put the file "
                f"back as it was, or {remedy_of(self.folder / 'checkpoint.pt')}"
            )
        os.ftruncate(file, mark.size)
        self._hash = hashlib.sha256(content)

    def _remove(self, name: str) -> None:
        path = self.folder / name
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise _unwritable(path, error) from error

    def _open_metrics(self) -> int:
        if self._metrics < 0:
            path = self.folder / "metrics.jsonl"
            try:
                self._metrics = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
                self._hash = hashlib.sha256(path.read_bytes())
            except OSError as error:
                raise _unwritable(path, error) from error
        return self._metrics


def _unusable(folder: Path, error: OSError) -> RunError:
    return RunError(
        f"could not write {folder}: {error.strerror}. Nothing was written: make room or get the "
        "permission, or choose another --output"
    )


def _unwritable(path: Path, error: OSError) -> RunError:
    return RunError(
        f"could not write {path}: {error.strerror}. What was written before is intact: make room "
        "or get the permission, then continue with cayley resume, or choose another --output"
    )
