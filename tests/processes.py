"""Functions of test files in processes of their own.

The processes are forked from one that has imported torch and the laboratory: a process that imports
them anew takes seconds.
"""

import importlib
import multiprocessing
import socket
import sys
from pathlib import Path
from typing import Any

__all__ = ["CONTEXT", "call", "call_in_processes", "free_port"]

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "pytest",
        "torch",
        "torch._dynamo",
        "torch.distributed.fsdp",
        "torch.nn.parallel",
        "lightning_fabric",
        "cayley.lab.training",
    ]
)


def free_port() -> str:
    """A port of this machine that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def call_in_processes(file: str, function: str, *calls: tuple) -> None:
    """Call a function of a file once for each tuple of arguments, at the same time."""
    processes = [CONTEXT.Process(target=call, args=(file, function, *each)) for each in calls]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
    codes = [process.exitcode for process in processes]
    for process in processes:
        # where one has failed, another may wait for it
        process.kill()
        process.join()
    assert codes == [0] * len(calls), f"{function} of {file} has ended with {codes}"


def call(file: str, function: str, *arguments: Any) -> None:
    """Call a function of a file, in the process that it is meant for."""
    path = Path(file)
    sys.path[:0] = [str(path.parent), str(Path(__file__).parent)]
    getattr(importlib.import_module(path.stem), function)(*arguments)
