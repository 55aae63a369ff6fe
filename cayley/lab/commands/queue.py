"""The runs that a command is to make: what is done, running and to do."""

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from cayley.lab.commands.files import write_file
from cayley.lab.errors import RunError
from cayley.lab.runs import read_result, read_run

__all__ = ["Queue", "Running", "Work"]


@dataclass
class Work:
    """A run that is to be made.

    Attributes:
        name: Recipe and seed, for people.
        recipe: Its recipe: runs of one take equally long.
        folder: Where the run goes; None for a process that makes several.
        command: The command line that starts or resumes it.
        code: The exit code; None while there is none.
        tries: How often it was started.
        seconds: How long it has been running.
    """

    name: str
    recipe: str
    folder: Path | None
    command: tuple[str, ...]
    code: int | None = None
    tries: int = 0
    seconds: float = 0.0


class Running(Protocol):
    """A run that is under way: here, it is a process; elsewhere, a task of a cluster."""

    @property
    def seconds(self) -> float:
        """How long it has been running."""
        ...

    def poll(self) -> int | None:
        """The exit code, or minus the signal that has killed it; None while there is neither."""
        ...

    def stop(self) -> None:
        """Have it write its checkpoint and end."""
        ...

    def wait(self, seconds: float) -> bool:
        """Whether it has ended within a time."""
        ...

    def kill(self) -> None:
        """End it, whatever it is at."""
        ...

    def take_words(self) -> str:
        """The last words of a run that has ended; to be called once."""
        ...


class Queue:
    """What is done, running and to do, in a file that says so.

    Arguments:
        works: What is to be done, most wanted first; those with an exit code are done.
        file: The file, written anew whenever something changes.
    """

    def __init__(self, works: Sequence[Work], file: Path) -> None:
        self.works, self.file = works, file
        self.waiting = deque(work for work in works if work.code is None)
        self.running: dict[str, Running] = {}

    def write(self) -> None:
        """Write the file."""
        rows = [self._row(work) for work in self.works]
        write_file(self.file, (json.dumps(rows, indent=1) + "\n").encode())

    def _row(self, work: Work) -> dict[str, str | float | None]:
        minutes = self.expected_seconds(work.recipe)
        return {
            "run": work.name,
            "folder": None if work.folder is None else str(work.folder),
            "state": self.state(work),
            "minutes": None if minutes is None else round(minutes / 60, 1),
        }

    def state(self, work: Work) -> Literal["running", "to do", "done", "failed"]:
        """What has become of a run in this session."""
        if work.name in self.running:
            return "running"
        if work.code is None:
            return "to do"
        return "failed" if work.code else "done"

    def expected_seconds(self, recipe: str) -> float | None:
        """How long a run of a recipe takes, by one that is done; None if there is none."""
        for work in self.works:
            folder = work.folder
            if work.recipe == recipe and folder and (folder / "result.json").exists():
                try:
                    description, _ = read_run(folder)
                    result = read_result(folder)
                except RunError:
                    # the run itself will say so
                    continue
                if description.timed_alone:
                    return result.seconds + result.evaluation_seconds
        return None
