"""Several processes on this machine that train one run, started by torchrun's agent."""

import logging
import os
import signal
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cayley.lab.commands.side_by_side import child_command
from cayley.lab.errors import MachineError
from cayley.lab.processes import ATTENDED, FOLLOWS

__all__ = ["launch"]

# the time between two checks of the processes by the agent
SECONDS = 0.1
NOTED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def launch(arguments: Sequence[str], processes: int) -> int:
    """Run a command in several connected processes.

    A signal is passed on to all of them. If one fails, the others are terminated.

    Arguments:
        arguments: The command line after ``cayley``.
        processes: The number of processes.

    Returns:
        The exit code: that of the first failure.
    """
    import torch
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=SECONDS,
        logs_specs=DefaultLogsSpecs(),
    )
    program, *words = child_command(arguments)
    # where --threads leaves it to torch, each process would have a thread on every core
    threads = max(1, torch.get_num_threads() // processes)
    with _attended():
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
        try:
            elastic_launch(config, program)(*words)
        except SignalException as error:
            return 128 + error.sigval
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            # the processes have already printed the reason
            if failure.exitcode > 0:
                return failure.exitcode
            name = signal.Signals(-failure.exitcode).name
            raise MachineError(
                f"process {rank} of {processes} was ended by {name}, and the others with it: find "
                "the cause, such as too little memory, and continue with cayley resume"
            ) from error
    return 0


@contextmanager
def _attended() -> Iterator[None]:
    """Context in which the agent logs nothing; it restores the signal handlers afterwards."""
    level, before = logging.root.manager.disable, {n: signal.getsignal(n) for n in NOTED}
    environment = dict(os.environ)
    logging.disable(logging.CRITICAL)
    os.environ |= {ATTENDED: "1", FOLLOWS: "1"}
    sys.stdout.flush()
    try:
        yield
    finally:
        logging.disable(level)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.environ.clear()
        os.environ.update(environment)
