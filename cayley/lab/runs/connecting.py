"""The connection of the processes of a run, which torchrun may have restarted."""

import gc
import json
import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from cayley.lab.errors import MachineError
from cayley.lab.processes import MEETING, Processes

if TYPE_CHECKING:
    from torch.distributed import Store

__all__ = ["connect", "disconnect", "meet"]

# one process may be busy with data for long; torchrun notices a dead one much earlier
PATIENCE = timedelta(days=1)
POLL_SECONDS = 0.02
ENDING = (signal.SIGINT, signal.SIGTERM)


def connect(processes: Processes, on_gpus: bool) -> None:
    """Connect this process with the others, unless it already is connected.

    Note:
        torchrun keeps its store when it restarts processes, and the store still contains what the
        former processes wrote: addresses at which nobody listens any more. So the current
        processes first agree on a key prefix of their own.

    References:
        PyTorch issue 135712, on restarts that share the store of the rendezvous.

    Arguments:
        processes: The processes, and which of them this is.
        on_gpus: Whether tensors are on GPUs; tensors on the host are still exchanged with gloo.
    """
    import torch.distributed as dist

    if not dist.is_initialized():
        with _mortal():
            _connect(processes, on_gpus)


def _connect(processes: Processes, on_gpus: bool) -> None:
    import torch
    import torch.distributed as dist

    backend = "cpu:gloo,cuda:nccl" if on_gpus else "gloo"
    device = torch.device("cuda", processes.local_rank) if on_gpus else None
    options = {"timeout": PATIENCE, "device_id": device}
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        dist.init_process_group(backend, **options)
        return
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=False, timeout=PATIENCE)
    os.environ[MEETING] = word = meet(store, processes.rank, processes.count)
    dist.init_process_group(
        backend,
        store=dist.PrefixStore(f"cayley/{word}", store),
        rank=processes.rank,
        world_size=processes.count,
        **options,
    )


def disconnect() -> None:
    """End the connection of :func:`connect`, and the threads that exchange tensors.

    Such a thread may still release the tensors of the last exchange. If Python ends meanwhile, the
    thread cannot take Python's lock any more, and C++ aborts the process, after a run that went
    well. The threads end with the last model that uses them, so none may be alive here; and no
    process may be in the middle of an exchange.
    """
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
        gc.collect()


@contextmanager
def _mortal() -> Iterator[None]:
    """Context in which signals end the process, which may wait for long with nothing to save."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_DFL) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def meet(store: "Store", rank: int, count: int, seconds: float = 1800.0) -> str:
    """A random word that the current processes agree on, whatever former ones have written.

    Each process writes its own word. The first process collects them, and the others adopt its word
    once theirs is in the collection.

    Arguments:
        store: The store that they share.
        rank: The rank of this process.
        count: The number of processes.
        seconds: How long to wait for the others.

    Example:
        >>> from torch.distributed import HashStore
        >>> len(meet(HashStore(), 0, 1))
        32
    """
    mine, end = uuid.uuid4().hex, time.monotonic() + seconds

    def read(key: str) -> str:
        return store.get(key).decode() if store.check([key]) else ""

    others = range(1, count)
    store.set(f"cayley/word/{rank}", mine)
    while True:
        if rank == 0:
            store.set("cayley/words", json.dumps([mine, *map(read, _keys("word", others))]))
            if all(word == mine for word in map(read, _keys("taken", others))):
                return mine
        else:
            words = json.loads(read("cayley/words") or "[]")
            if words[rank : rank + 1] == [mine]:
                store.set(f"cayley/taken/{rank}", words[0])
                return words[0]
        if time.monotonic() > end:
            raise MachineError(
                f"expected {count} processes of a run to connect, got too few in {seconds:.0f} "
                f"seconds: see what torchrun prints about the others"
            )
        time.sleep(POLL_SECONDS)


def _keys(kind: str, ranks: range) -> list[str]:
    return [f"cayley/{kind}/{rank}" for rank in ranks]
