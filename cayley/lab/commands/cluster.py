"""Runs as tasks of a Ray cluster, each with its share of a GPU: what dies resumes elsewhere."""

import logging
import os
import re
import signal
import socket
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cayley.lab.commands.files import absolute_paths
from cayley.lab.commands.node import Outcome, Terminated, last_line, run_command, run_elsewhere
from cayley.lab.commands.parcels import pack, unpack
from cayley.lab.commands.queue import Queue, Work
from cayley.lab.commands.side_by_side import CRASH, child_command, run_side_by_side
from cayley.lab.errors import MachineError, RecipeError, RunError
from cayley.lab.runs import Interrupts

__all__ = ["Share", "Task", "choose_share", "joined", "on_nodes", "run_on_cluster", "task_starter"]

# how often Ray starts a run again whose node or process has died
MOST_RETRIES = 10
CONNECT_SECONDS = 10.0
# after which a task that is killed does not matter any more
KILL_SECONDS = 1.0
KILLED = 128 + signal.SIGKILL
# by this program, which cancels tasks by SIGINT
STOPPED = 128 + signal.SIGINT


@dataclass(frozen=True)
class Share:
    """What a run has of a node.

    Attributes:
        gpus: Share of a GPU, or a whole number of them; 0 for none.
        cpus: How many processors.
    """

    gpus: float = 0.0
    cpus: int = 1


def choose_share(options: Namespace) -> Share:
    """What each run of a command has of a node; raise if its other options want something else."""
    if ":" in options.device or (options.device == "cuda" and not options.gpus_per_run):
        raise RecipeError(
            f"expected --gpus-per-run, as --ray gives each run its GPU, got --device "
            f"{options.device}: choose --device cuda --gpus-per-run 1, or a share of one"
        )
    return Share(options.gpus_per_run, max(1, options.threads))


def on_nodes(options: Namespace) -> Namespace:
    """The options of a command for runs in other folders and on other machines."""
    found = absolute_paths(options)
    if not options.gpus_per_run:
        # a GPU that the cluster does not know of would be that of all runs of a node
        found.device = "cpu"
    return found


def run_on_cluster(
    works: Sequence[Work],
    address: str,
    share: Share,
    file: Path,
    *,
    fetch: bool = False,
    seconds: float | None = None,
    tell: Callable[[str], None] = print,
    progress: Callable[[Queue], str] | None = None,
    live: bool = False,
) -> int:
    """Do everything on a cluster, which knows how much it can do at a time.

    Arguments:
        works: What is to be done, most wanted first.
        address: As for :func:`joined`.
        share: What each has of a node.
        file: Says what is done and what is not.
        fetch: As for :func:`task_starter`.
        seconds: When to stop; None for no limit.
        tell: Takes words on how it goes.
        progress: What is told now and then; None for the steps of the runs.
        live: Whether a table at the terminal shows how far each run is.

    Returns:
        The exit code: that of the first failure.
    """
    with joined(address):
        if shortage := _find_shortage(share):
            if address == "local":
                raise MachineError(f"{shortage}: choose a smaller --gpus-per-run, or --threads")
            tell(f"{shortage}: runs wait until there is one")
        queue, start = Queue(works, file), task_starter(share, fetch=fetch)
        # after Ray, which has handlers of its own
        with Interrupts() as interrupts:
            return run_side_by_side(
                queue,
                len(works),
                interrupts,
                seconds=seconds,
                tell=tell,
                progress=progress,
                start=start,
                live=live,
            )


@contextmanager
def joined(address: str) -> Iterator[None]:
    """Be connected with a Ray cluster.

    Arguments:
        address: ``HOST:PORT``; ``"auto"`` for the cluster that runs on this machine, or that
            ``RAY_ADDRESS`` names; ``"local"`` for a new one on this machine, which ends with this.
    """
    try:
        import ray
    except ModuleNotFoundError as error:
        raise MachineError(
            "expected the package ray for --ray, got none: pip install 'cayley[cluster]' brings "
            "it; in a checkout, pip install --editable '.[cluster]'"
        ) from error
    # nothing is to be sent anywhere, nor said about what a later release will do
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    before = signal.getsignal(signal.SIGTERM)
    more: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    try:
        _check_port(address)
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **more)
    except (OSError, RuntimeError, ValueError) as error:
        raise MachineError(
            f"expected a Ray cluster at {address}, got none: start one with ray start --head, take "
            "--ray local, or set the token of the cluster and RAY_AUTH_MODE=token if it asks for "
            f"one. {_first_line(error)}"
        ) from error
    finally:
        # that of Ray would end this process before the runs have stopped
        signal.signal(signal.SIGTERM, before)
    try:
        yield
    finally:
        ray.shutdown()


def _check_port(address: str) -> None:
    """Raise if nobody listens at an address: Ray itself tries for minutes."""
    found = re.fullmatch(r"([^/:]+):(\d+)", address)
    if found is not None:
        socket.create_connection((found[1], int(found[2])), CONNECT_SECONDS).close()


def _find_shortage(share: Share) -> str:
    """What no node of the cluster has, in words; empty if there is one that can take a run."""
    import ray

    wanted = {"CPU": float(share.cpus), "GPU": share.gpus}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(all(node.get(kind, 0.0) >= count for kind, count in wanted.items()) for node in nodes):
        return ""
    most = {kind: max((node.get(kind, 0.0) for node in nodes), default=0.0) for kind in wanted}
    return (
        f"expected a node with {share.cpus:g} CPU and {share.gpus:g} GPU for a run, got at most "
        f"{most['CPU']:g} and {most['GPU']:g}"
    )


def task_starter(share: Share, *, fetch: bool = False) -> "Callable[[Work], Task]":
    """What hands a run to the cluster that this process is connected with.

    The command is that of the run in a process of its own, as
    :func:`~cayley.lab.commands.side_by_side.child_command` says it. Ray starts it again, on another
    node, when its node or process dies, and it resumes from its checkpoint.

    Arguments:
        share: What a run has of a node.
        fetch: Whether nodes see no storage of this machine. Then a run works in a folder of its
            node, and comes back when it ends or stops; it starts with what is here.
    """
    import ray

    remote: Any = ray.remote
    # one object for all runs, as Ray sends each to the nodes
    task = remote(
        num_cpus=share.cpus,
        num_gpus=share.gpus,
        max_retries=MOST_RETRIES,
        retry_exceptions=[Terminated],
        # a process for each run, as no two share what torch was told
        max_calls=1,
    )(run_elsewhere if fetch else run_command)
    known = {key: value for key, value in os.environ.items() if key.startswith("CAYLEY_")}

    def start(work: Work) -> Task:
        # the interpreter is that of the node
        arguments = work.command[len(child_command(())) :]
        folder, promise = work.folder, task.options(name=work.name).remote
        if not fetch:
            return Task(promise(arguments, known, folder))
        if folder is None:
            raise RunError(f"{work.name}: expected one folder to fetch, got a process with several")
        return Task(promise(arguments, known, work.name, pack(folder)), folder)

    return start


class Task:
    """A run that a cluster has been handed.

    Arguments:
        promise: The promise of an :class:`Outcome`, by Ray.
        folder: Where its files go; None if they are not fetched.
    """

    def __init__(self, promise: Any, folder: Path | None = None) -> None:
        self._promise, self._folder = promise, folder
        self._outcome: Outcome | None = None

    @property
    def seconds(self) -> float:
        """How long it was running, without the time that it waited for a node."""
        return 0.0 if self._outcome is None else self._outcome.seconds

    def poll(self) -> int | None:
        """The exit code; None while there is none."""
        if self._outcome is None and not self.wait(0.0):
            return None
        if self._outcome is None:
            self._outcome = self._get()
            # one that was cancelled before it began, or that has died, has none
            if self._folder is not None and self._outcome.files:
                unpack(self._outcome.files, self._folder)
        return self._outcome.code

    def stop(self) -> None:
        """Have it write its checkpoint and end; if it waits for a node, it will not start."""
        import ray

        # a Ctrl-C in the process of the run
        ray.cancel(self._promise)

    def wait(self, seconds: float) -> bool:
        """Whether it has ended within a time."""
        import ray

        return bool(ray.wait([self._promise], timeout=seconds)[0])

    def kill(self) -> None:
        """End it, whatever it is at."""
        import ray

        ray.cancel(self._promise, force=True)
        self.wait(KILL_SECONDS)

    def take_words(self) -> str:
        """Its last words."""
        return "" if self._outcome is None else self._outcome.words

    def _get(self) -> Outcome:
        import ray

        try:
            return ray.get(self._promise)
        except ray.exceptions.TaskCancelledError:
            return Outcome(STOPPED)
        except ray.exceptions.RayTaskError as error:
            return Outcome(CRASH, last_line(str(error)))
        # its node or its process, again and again
        except ray.exceptions.RayError as error:
            return Outcome(KILLED, _first_line(error))


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
