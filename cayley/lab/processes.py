"""The processes that train one run together, as torchrun starts them, and those of a command."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import timedelta

__all__ = ["ATTENDED", "FOLLOWS", "MEETING", "Processes", "end_with", "find_processes", "orphaned"]

STORE_SECONDS = 10
# between two looks at whether the parent is still there
LOOK_SECONDS = 0.5
# set by a command that starts the processes itself, and reports if one dies
ATTENDED = "CAYLEY_ATTENDED"
# identifies one connection of the processes, so that a restart is not mistaken for it
MEETING = "CAYLEY_MEETING"
# set for processes that end with the one that started them
FOLLOWS = "CAYLEY_FOLLOWS"


@dataclass(frozen=True)
class Processes:
    """The processes of a run, and which of them this is.

    Attributes:
        rank: The rank of this process; the process of rank 0 writes the run.
        count: The number of processes.
        local_rank: The rank of this process among those on its machine.
        local_count: The number of processes on its machine.
        restarts: How often torchrun has restarted all of them.
        attended: Whether the command that started them reports if one dies.
    """

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    local_count: int = 1
    restarts: int = 0
    attended: bool = False

    @property
    def several(self) -> bool:
        """Whether there is more than one."""
        return self.count > 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes the run."""
        return self.rank == 0

    @contextmanager
    def alone_aloud(self) -> Iterator[None]:
        """Context in which only the first process prints."""
        if self.first:
            yield
            return
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            yield

    def claim_report(self) -> bool:
        """Whether this process is the first to ask, and so the one that reports a failure.

        If one process fails, the others fail because it is gone, and their errors are noise.
        """
        if not self.several:
            return True
        from torch.distributed import DistNetworkError, DistStoreError, TCPStore

        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        limit = timedelta(seconds=STORE_SECONDS)
        try:
            store = TCPStore(address, port, is_master=False, timeout=limit, wait_for_workers=False)
            meeting = os.environ.get(MEETING, f"{self.restarts}/{self.count}")
            return store.add(f"cayley/report/{meeting}", 1) == 1
        except (DistNetworkError, DistStoreError):
            # better reported twice than not at all
            return True


def find_processes() -> Processes:
    """The processes that torchrun has started; without torchrun, only this one.

    Example:
        >>> find_processes()
        Processes(rank=0, count=1, local_rank=0, local_count=1, restarts=0, attended=False)
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return Processes()
    return Processes(
        rank=int(os.environ["RANK"]),
        count=int(os.environ["WORLD_SIZE"]),
        local_rank=int(os.environ["LOCAL_RANK"]),
        local_count=int(os.environ["LOCAL_WORLD_SIZE"]),
        restarts=int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
        attended=ATTENDED in os.environ,
    )


def end_with(wait: Callable[[], object]) -> None:
    """Have this process end as by SIGTERM, on which a run writes its checkpoint.

    Arguments:
        wait: Returns when it is time, such as at the end of the parent, however that ends.
    """

    def follow() -> None:
        wait()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()


def orphaned() -> None:
    """Return when the process that has started this one has ended; this one then has another."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
