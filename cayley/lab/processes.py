"""The processes that train one run together, as torchrun has started them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import timedelta

from cayley.lab.errors import MachineError

__all__ = ["ATTENDED", "MEETING", "Processes", "find_processes"]

STORE_SECONDS = 10
# set by the command that starts processes itself, and says what becomes of them
ATTENDED = "CAYLEY_ATTENDED"
# what the processes that are connected have in common, and those before them had not
MEETING = "CAYLEY_MEETING"


@dataclass(frozen=True)
class Processes:
    """The processes of a run, and which of them this is.

    Attributes:
        rank: Of this process, from 0. The first one writes the run.
        count: How many there are.
        local_rank: Of this process among those of its machine.
        local_count: How many there are on its machine.
        restarts: How often torchrun has started all of them again.
        attended: Whether the command that has started them says so if one dies.
    """

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    local_count: int = 1
    restarts: int = 0
    attended: bool = False

    @property
    def several(self) -> bool:
        """Whether there are others."""
        return self.count > 1

    @property
    def first(self) -> bool:
        """Whether this is the one that writes."""
        return self.rank == 0

    @property
    def machines(self) -> int:
        """On how many machines they are."""
        return self.count // self.local_count

    def check(self) -> None:
        """Raise unless every machine has as many."""
        if self.count % self.local_count:
            raise MachineError(
                f"expected as many processes on every machine, got {self.local_count} here of "
                f"{self.count}: give torchrun the same --nproc-per-node everywhere"
            )

    @contextmanager
    def alone_aloud(self) -> Iterator[None]:
        """Context in which only the first process prints."""
        if self.first:
            yield
            return
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            yield

    def claim_report(self) -> bool:
        """Whether this process is the first of all to ask: the one that reports a failure.

        Where one fails the others fail for want of it, and what they would say is noise.
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
            # better said twice than not at all
            return True


def find_processes() -> Processes:
    """Those that torchrun says there are; without it, this one alone.

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
