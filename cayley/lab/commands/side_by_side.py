"""Several runs side by side, each in its own process; what dies resumes from its checkpoint."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from cayley.lab.commands.live import LiveTable
from cayley.lab.commands.queue import Queue, Running, Work
from cayley.lab.errors import Interrupted
from cayley.lab.processes import FOLLOWS
from cayley.lab.runs import Interrupts, find_state
from cayley.lab.wording import counted, duration

__all__ = ["CRASH", "Process", "child_command", "run_side_by_side"]

# a process that has been asked to stop writes its checkpoint
STOP_SECONDS = 60.0
LOOK_SECONDS = 0.1
# between two looks at how far runs are
TELL_SECONDS = 30.0
# how often a run is started again that a signal or a fault of the device has killed
MOST_TRIES = 3
# the exit code of an error that nobody caught, such as a fault of the device; missing data have it
# too, but then no run has begun
CRASH = 1


class Process:
    """A run in a process of its own on this machine.

    Arguments:
        work: What to do.
    """

    def __init__(self, work: Work) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._began = time.monotonic()
        # Ctrl-C is for this process, which passes it on
        self._process = subprocess.Popen(
            work.command,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            start_new_session=True,
            env=os.environ | {FOLLOWS: "1"},
        )

    @property
    def seconds(self) -> float:
        """How long it has been running."""
        return time.monotonic() - self._began

    def poll(self) -> int | None:
        """The exit code, or minus the signal that has killed it; None while there is neither."""
        return self._process.poll()

    def stop(self) -> None:
        """Have it write its checkpoint and end."""
        self._process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> bool:
        """Whether it has ended within a time."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """End it, whatever it is at."""
        self._process.kill()
        self._process.wait()

    def take_words(self) -> str:
        """The last line that it wrote to the standard error; to be called once."""
        with self._errors as errors:
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


def run_side_by_side(
    queue: Queue,
    slots: int,
    interrupts: Interrupts,
    *,
    seconds: float | None = None,
    tell: Callable[[str], None] = print,
    progress: Callable[[Queue], str] | None = None,
    start: Callable[[Work], Running] = Process,
    live: bool = False,
) -> int:
    """Do everything in a queue, several at a time.

    A run killed by a signal, or by a fault of its device, is restarted from its checkpoint, twice
    at most. When the time is over, or a signal asks to stop, the runs write their checkpoints and
    end.

    Arguments:
        queue: What to do.
        slots: How many are started at a time.
        interrupts: Signals that ask to stop.
        seconds: When to stop; None for no limit.
        tell: Takes words on how it goes; what failed is printed to the standard error.
        progress: What is told now and then; None for the steps of the runs.
        start: Starts one.
        live: Whether a table at the terminal shows how far each run is, in place of lines now and
            then.

    Returns:
        The exit code: that of the first failure; what the time did not suffice for is none.
    """
    began = told = time.monotonic()
    with LiveTable(progress=progress) if live else nullcontext() as table:
        say = tell if table is None else table.tell
        warn = _print_error if table is None else say
        try:
            while queue.waiting or queue.running:
                now = time.monotonic()
                if interrupts.signal or (seconds is not None and now - began > seconds):
                    break
                while queue.waiting and len(queue.running) < slots:
                    _start(queue, queue.waiting.popleft(), start)
                _collect(queue, say, warn)
                if table is not None:
                    table.show(queue)
                elif now - told > TELL_SECONDS:
                    told = now
                    tell((progress or _progress)(queue))
                time.sleep(LOOK_SECONDS)
        finally:
            _stop(queue, warn)
    left = sum(work.code is None for work in queue.works)
    to_do = counted(left, "run")
    if interrupts.signal:
        raise Interrupted(
            f"stopped with {to_do} to do; continue with the same command", interrupts.signal
        )
    if left:
        tell(f"the time is over with {to_do} to do; continue with the same command")
    return next((work.code for work in queue.works if work.code), 0)


def _print_error(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _start(queue: Queue, work: Work, start: Callable[[Work], Running]) -> None:
    queue.running[work.name] = start(work)
    work.tries += 1
    queue.write()


def _collect(queue: Queue, tell: Callable[[str], None], warn: Callable[[str], None]) -> None:
    """Take note of runs that have ended."""
    for work in queue.works:
        running = queue.running.get(work.name)
        code = None if running is None else running.poll()
        if code is None:
            continue
        words = _end(queue, work)
        began = work.folder is not None and (work.folder / "run.json").exists()
        if (code < 0 or (code == CRASH and began)) and work.tries < MOST_TRIES:
            warn(f"{work.name}: died ({_death(code)}), resumes from its checkpoint. {words}")
            queue.waiting.appendleft(work)
            continue
        work.code = code if code >= 0 else 128 - code
        end = f"failed ({_death(code)}). {words}" if code else "done"
        (warn if code else tell)(f"{work.name}: {end}, {duration(work.seconds)}")
        queue.write()


def _end(queue: Queue, work: Work) -> str:
    """The last words of a run that has ended."""
    running = queue.running.pop(work.name)
    work.seconds += running.seconds
    return running.take_words()


def _stop(queue: Queue, warn: Callable[[str], None]) -> None:
    """Have all runs write their checkpoints and end."""
    for running in queue.running.values():
        running.stop()
    deadline = time.monotonic() + STOP_SECONDS
    for work in queue.works:
        running = queue.running.get(work.name)
        if running is None:
            continue
        if not running.wait(max(0.1, deadline - time.monotonic())):
            running.kill()
            warn(f"{work.name}: killed, as it did not stop; it resumes from its last checkpoint")
        # it may have ended by itself just then
        work.code = 0 if running.poll() == 0 else None
        _end(queue, work)
    queue.write()


def _progress(queue: Queue) -> str:
    """A line for each run that is under way."""
    lines = []
    for work in queue.works:
        if work.name in queue.running:
            if work.folder is not None and (work.folder / "run.json").exists():
                state = find_state(work.folder)
                lines.append(f"{work.name}: step {state.step} of {state.steps}")
            else:
                lines.append(f"{work.name}: no step yet")
    done = sum(work.code is not None for work in queue.works)
    return "\n".join((*lines, f"{done} of {len(queue.works)} done"))


def _death(code: int) -> str:
    """An exit code in words.

    Example:
        >>> _death(3), _death(-9)
        ('exit code 3', 'SIGKILL')
    """
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def child_command(arguments: Sequence[str]) -> tuple[str, ...]:
    """The command line of this program in another process."""
    # no file in the current folder hides an installed module, unless this program is there
    safe = [] if Path.cwd() == Path(__file__).parents[3] else ["-P"]
    return (sys.executable, *safe, "-m", "cayley", *arguments)
