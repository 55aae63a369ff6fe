"""The run folder of several processes: one of them writes, and all see the same content."""

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

# how long torchrun may leave a process that it terminates, which still holds the folder
LOCK_SECONDS = 40.0


def open_folder(folder: Path, machine: Machine) -> "RunFolder | SharedFolder":
    """The run folder, for this process alone or shared by all that torchrun has started.

    Arguments:
        folder: The folder; it is created if it does not exist.
        machine: The machine, which connects the processes.
    """
    processes = find_processes()
    if not processes.several:
        return RunFolder(folder)
    machine.engine(processes)
    return SharedFolder(folder, processes)


class SharedFolder:
    """A :class:`RunFolder` to which only the first of several connected processes writes.

    All processes must make the same calls, in the same order. They all read what the first one
    reads, so that they make the same decisions.

    Arguments:
        folder: The folder; the first process creates it if it does not exist.
        processes: The processes, and which of them this is.
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
        """The description of the run; only the first process has it."""
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
        """See :meth:`RunFolder.mark`; for other processes the metrics are empty."""
        return Mark() if self._inner is None else self._inner.mark()

    def rewind(self, mark: Mark, step: int = -1) -> None:
        """See :meth:`RunFolder.rewind`."""
        if self._inner is not None:
            self._inner.rewind(mark, step)

    def has(self, name: str) -> bool:
        """Whether a file exists."""
        return self._tell(lambda inner: inner.has(name))

    def load(self, name: str) -> dict[str, Any]:
        """See :meth:`RunFolder.load`."""
        return self._tell(lambda inner: inner.load(name))

    def _tell(self, read: Callable[[RunFolder], Any]) -> Any:
        """What the first process reads, sent to all."""
        import torch.distributed as dist

        found = [None if self._inner is None else read(self._inner)]
        dist.broadcast_object_list(found)
        return found[0]


def _wait_for(folder: Path, processes: Processes) -> RunFolder:
    """The folder; a restarted process may have to wait until the former one releases it."""
    end = time.monotonic() + (LOCK_SECONDS if processes.restarts else 0.0)
    while True:
        try:
            return RunFolder(folder)
        except RunError:
            if time.monotonic() > end:
                raise
        time.sleep(0.2)
