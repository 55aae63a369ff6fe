"""The folder of a run that several processes train: one of them writes, all know what is in it."""

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from cayley.lab.errors import RunError
from cayley.lab.processes import Processes, find_processes
from cayley.lab.runs.description import RunDescription
from cayley.lab.runs.folders import Mark, Record, RunFolder
from cayley.lab.runs.machine import Machine
from cayley.lab.runs.result import RunResult

__all__ = ["SharedFolder", "open_folder"]

# how long a process that is being ended may hold the folder, as torchrun lets it
LOCK_SECONDS = 40.0


def open_folder(folder: Path, machine: Machine) -> "RunFolder | SharedFolder":
    """The folder of a run, of this process or of all that torchrun has started.

    Arguments:
        folder: Made if it does not exist.
        machine: Connects the processes.
    """
    processes = find_processes()
    if not processes.several:
        return RunFolder(folder)
    machine.fabric(processes)
    return SharedFolder(folder, processes)


class SharedFolder:
    """A :class:`RunFolder` that the first of several connected processes writes.

    All processes must do the same with it, in the same order. What they read is what the first one
    read, so that all of them decide alike.

    Arguments:
        folder: Made by the first process if it does not exist.
        processes: Which process this is.
    """

    def __init__(self, folder: Path, processes: Processes) -> None:
        self.folder = folder
        self._inner = _wait_for(folder, processes) if processes.first else None

    def __enter__(self) -> "SharedFolder":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._inner is not None:
            self._inner.__exit__(kind, error, traceback)

    @property
    def description(self) -> RunDescription | None:
        """Of the run that files are sealed for; only the first process knows."""
        return None if self._inner is None else self._inner.description

    @description.setter
    def description(self, description: RunDescription | None) -> None:
        if self._inner is not None:
            self._inner.description = description

    def begin(self, description: RunDescription) -> None:
        """See :meth:`RunFolder.begin`."""
        if self._inner is not None:
            self._inner.begin(description)

    def change(self, description: RunDescription) -> None:
        """See :meth:`RunFolder.change`."""
        if self._inner is not None:
            self._inner.change(description)

    def finish(self, result: RunResult) -> None:
        """See :meth:`RunFolder.finish`."""
        if self._inner is not None:
            self._inner.finish(result)

    def write(self, name: str, *parts: bytes | memoryview) -> None:
        """See :meth:`RunFolder.write`."""
        if self._inner is not None:
            self._inner.write(name, *parts)

    def save(self, name: str, state: dict[str, Any]) -> None:
        """See :meth:`RunFolder.save`."""
        if self._inner is not None:
            self._inner.save(name, state)

    def record(self, record: Record) -> None:
        """See :meth:`RunFolder.record`."""
        if self._inner is not None:
            self._inner.record(record)

    def mark(self) -> Mark:
        """See :meth:`RunFolder.mark`; to other processes the metrics are empty."""
        return Mark() if self._inner is None else self._inner.mark()

    def rewind(self, mark: Mark) -> None:
        """See :meth:`RunFolder.rewind`."""
        if self._inner is not None:
            self._inner.rewind(mark)

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        return self._tell(lambda inner: inner.has(name))

    def load(self, name: str) -> dict[str, Any]:
        """See :meth:`RunFolder.load`."""
        return self._tell(lambda inner: inner.load(name))

    def _tell(self, read: Callable[[RunFolder], Any]) -> Any:
        """What the first process reads, in all."""
        import torch.distributed as dist

        found = [None if self._inner is None else read(self._inner)]
        dist.broadcast_object_list(found)
        return found[0]


def _wait_for(folder: Path, processes: Processes) -> RunFolder:
    """The folder, which a process that was started again may have to wait for."""
    end = time.monotonic() + (LOCK_SECONDS if processes.restarts else 0.0)
    while True:
        try:
            return RunFolder(folder)
        except RunError:
            if time.monotonic() > end:
                raise
        time.sleep(0.2)
