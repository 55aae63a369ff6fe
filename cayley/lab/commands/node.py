"""What of a run on a cluster happens on its node."""

import io
import os
import runpy
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path

from cayley.lab.commands.parcels import pack, unpack
from cayley.lab.commands.side_by_side import CRASH
from cayley.lab.runs import Interrupts, is_running

__all__ = ["Outcome", "Terminated", "last_line", "run_command", "run_elsewhere"]

# how long a folder may be locked by a process whose node has just died: file servers find out late
LOCK_SECONDS = 120.0
LOOK_SECONDS = 0.2
TERMINATED = 128 + signal.SIGTERM


@dataclass(frozen=True)
class Outcome:
    """What a task hands back.

    Attributes:
        code: The exit code of its command.
        words: The last line that it wrote to the standard error.
        seconds: How long it took.
        files: The files of the folder, if that is fetched back.
    """

    code: int
    words: str = ""
    seconds: float = 0.0
    files: bytes = field(default=b"", repr=False)


class Terminated(Exception):
    """A run that somebody else than this program has asked to stop: its node is to go away."""


def run_command(
    arguments: Sequence[str], environment: Mapping[str, str], folder: Path | None = None
) -> Outcome:
    """Run this program in this process, which has nothing else to do.

    Arguments:
        arguments: The words after ``cayley``.
        environment: Variables to set.
        folder: Where the run goes. A process that is about to die with its node may still hold it.

    Raises:
        Terminated: After a checkpoint, if a SIGTERM came. Ray is to start it again elsewhere.
    """
    began = time.monotonic()
    os.environ.update(environment)
    while folder is not None and is_running(folder) and time.monotonic() - began < LOCK_SECONDS:
        time.sleep(LOOK_SECONDS)
    errors = io.StringIO()
    before, sys.argv = sys.argv, ["cayley", *arguments]
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(errors):
            runpy.run_module("cayley", run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception:
        # as Python ends a process with it; the next one may go on
        code = CRASH
        errors.write(traceback.format_exc())
    finally:
        sys.argv = before
    # for the logs of Ray
    print(errors.getvalue(), file=sys.stderr, end="")
    if code == TERMINATED:
        raise Terminated(last_line(errors.getvalue()))
    return Outcome(code, last_line(errors.getvalue()), time.monotonic() - began)


def run_elsewhere(
    arguments: Sequence[str], environment: Mapping[str, str], name: str, files: bytes
) -> Outcome:
    """The same on a machine that does not see the folder: it is brought here, and handed back.

    Arguments:
        arguments: The words after ``cayley``.
        environment: Variables to set.
        name: The name of the folder, below that of all runs.
        files: What is in it, by :func:`~cayley.lab.commands.parcels.pack`.
    """
    with tempfile.TemporaryDirectory(prefix="cayley-") as output:
        folder = Path(output, name)
        unpack(files, folder)
        outcome = run_command([*arguments, "--output", output], environment)
        # whoever stops it wants its checkpoint
        with Interrupts():
            return replace(outcome, files=pack(folder))


def last_line(text: str) -> str:
    """The last line of a text; empty if there is none."""
    return next(reversed(text.strip().splitlines()), "")
