"""Functions of test files, and scripts, in processes of their own.

The processes are forked from one that has imported torch and the laboratory: a process that imports
them anew takes seconds.
"""

import ast
import atexit
import functools
import importlib
import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

__all__ = [
    "CONTEXT",
    "FORKED",
    "Started",
    "call",
    "call_in_processes",
    "free_port",
    "run_after_torch",
    "start",
]

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "pytest",
        "torch",
        "torch._dynamo",
        "torch.distributed.fsdp",
        "torch.distributed.launcher.api",
        "torch.nn.parallel",
        "cayley.cli",
        "cayley.lab.runs.engine",
        "cayley.lab.training",
    ]
)


# forks for scripts, given as their repr: answers with a traceback or ""
AFTER_TORCH = """
import os, sys, traceback, torch
for line in sys.stdin:
    if os.fork() == 0:
        error = ""
        try:
            exec(eval(line), {})
        except BaseException:
            error = traceback.format_exc()
        print(repr(error), flush=True)
        os._exit(0)
    if status := os.wait()[1]:
        print(repr(f"died: {status}"), flush=True)
"""


@functools.cache
def _server() -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, "-c", AFTER_TORCH],
        cwd=Path(__file__).parent.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    # ends it: there are no more lines to read
    atexit.register(server.communicate)
    return server


def run_after_torch(script: str) -> None:
    """Run a silent script where torch is imported, but nothing else that tests need."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    print(repr(script), file=server.stdin, flush=True)
    error = ast.literal_eval(server.stdout.readline())
    assert not error, error


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


def start(folder: Path, file: str, function: str, *arguments: Any) -> BaseProcess:
    """Begin to call a function of a file, with its output in ``out`` and ``err`` of a folder."""
    for name in ("out", "err"):
        (folder / name).touch()
    process = CONTEXT.Process(target=call_into, args=(folder, file, function, *arguments))
    process.start()
    return process


def call_into(folder: Path, file: str, function: str, *arguments: Any) -> None:
    """Call a function of a file, and exit with what it returns."""
    for name, stream in (("out", 1), ("err", 2)):
        os.dup2(os.open(folder / name, os.O_WRONLY), stream)
    sys.exit(call(file, function, *arguments))


def call(file: str, function: str, *arguments: Any) -> Any:
    """Call a function of a file, in the process that it is meant for."""
    path = Path(file)
    sys.path[:0] = [str(path.parent), str(Path(__file__).parent)]
    return getattr(importlib.import_module(path.stem), function)(*arguments)


class Started:
    """``subprocess.Popen`` of a function that :func:`start` begins."""

    def __init__(self, *arguments: Any) -> None:
        self.process = start(*arguments)
        self.pid = self.process.pid

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        self.process.join(timeout)
        return self.poll()


class Forked:
    """``subprocess.Popen`` of ``python -m cayley``, as far as runs that end well need it."""

    def __init__(self, command: Sequence[str], **_: Any) -> None:
        program = command.index("cayley")
        assert [*command[:program]] in ([sys.executable, "-m"], [sys.executable, "-P", "-m"])
        arguments = command[program + 1 :]
        self.process = CONTEXT.Process(target=run_command, args=(os.getcwd(), arguments))
        self.process.start()

    def poll(self) -> int | None:
        return self.process.exitcode


def run_command(folder: str, arguments: Sequence[str]) -> None:
    """Do silently in a folder what ``cayley`` with these arguments does."""
    from cayley.cli import main

    os.chdir(folder)
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    sys.exit(main([*arguments]))


# in place of the module, for processes that would take seconds to import torch
FORKED = SimpleNamespace(DEVNULL=subprocess.DEVNULL, Popen=Forked)
