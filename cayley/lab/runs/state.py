"""The state of a run: done, running, stopped or failed."""

import fcntl
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cayley.lab.errors import RunError
from cayley.lab.runs.reading import (
    CRASHED,
    NOT_FINITE,
    THINNED,
    read_metrics,
    read_result,
    read_run,
)

__all__ = ["RunState", "State", "find_state", "is_alive", "is_running"]

State = Literal["done", "running", "stopped", "failed", "damaged"]


@dataclass(frozen=True)
class RunState:
    """The state of a run.

    Attributes:
        folder: The folder of the run.
        state: A ``"stopped"`` run can be resumed; a ``"failed"`` one would fail again; a
            ``"damaged"`` one cannot be read.
        step: The last recorded step.
        steps: The planned number of steps; 0 if that cannot be read.
        message: The last event, or what is wrong.
    """

    folder: Path
    state: State
    step: int = 0
    steps: int = 0
    message: str = ""


# events with which a run ends before its result
ENDS = ("interrupted", "pruned", CRASHED, NOT_FINITE)


def find_state(folder: Path) -> RunState:
    """The state of the run in a folder; nothing in it is changed."""
    try:
        description, _ = read_run(folder)
        steps = description.steps
        if (folder / "result.json").exists():
            result = read_result(folder, description)
            return RunState(folder, "done", result.step, steps, result.status)
        records = [one for one in read_metrics(folder) if one.get("event") != THINNED]
    # a line of the metrics that is not JSON is a ValueError
    except (RunError, ValueError) as error:
        return RunState(folder, "damaged", message=str(error))
    step = max((record["step"] for record in records), default=0)
    if is_running(folder):
        return RunState(folder, "running", step, steps)
    event, message = "", "killed, or the machine went off"
    # after other events it went on
    if records and records[-1].get("event") in ENDS:
        event, message = records[-1]["event"], records[-1]["message"]
    return RunState(folder, "failed" if event == NOT_FINITE else "stopped", step, steps, message)


def is_running(folder: Path) -> bool:
    """Whether a process is writing a run.

    The lock file of a folder names its process. The lock is tried, for a moment, only if that
    process may be alive: a run that starts just then must not find the folder locked.
    """
    try:
        file = os.open(folder / "lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        owner = re.fullmatch(r"process (\d+) on (.*)", os.read(file, 200).decode(errors="replace"))
        if owner is None or (owner[2] == socket.gethostname() and not is_alive(int(owner[1]))):
            return False
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def is_alive(process: int) -> bool:
    """Whether there is a process of that id on this machine.

    Example:
        >>> is_alive(os.getpid())
        True
    """
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
