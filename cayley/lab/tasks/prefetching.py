"""Batches made in chunks and, on the CPU, one chunk ahead, during training on the last ones."""

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

import torch

from cayley.lab.tasks.batch import Batch, Position, Split
from cayley.lab.tasks.examples import ExampleTask
from cayley.lab.tasks.task import Task

__all__ = ["Prefetcher", "prefetch"]


@cache
def _worker() -> ThreadPoolExecutor:
    """A thread that makes batches during training on the previous ones."""
    return ThreadPoolExecutor(1, "cayley-batch")


# threads do not survive in a forked process
os.register_at_fork(after_in_child=_worker.cache_clear)


class Prefetcher:
    """The batches of a split by position: those of ``task.batch``, but made ahead of time.

    Arguments:
        task: The task.
        split: Which part of the data.
        B: The number of examples per batch.
        seed: The seed of the random parts of the examples and of their order.
        device: Where the batches are.
        dtype: The dtype of floating numbers.

    Example:
        >>> from cayley.lab.tasks import make_task
        >>> batches = Prefetcher(make_task("adding", T=20), "train", 40)
        >>> first = batches.batch(Position())
        >>> batches.batch(first.next).position
        Position(epoch=0, batch=1)
    """

    def __init__(
        self,
        task: Task,
        split: Split,
        B: int,
        *,
        seed: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.task, self.split, self.B, self.seed = task, split, B, seed
        self.device = device
        self.dtype = torch.get_default_dtype() if dtype is None else dtype
        on_cpu = device is None or torch.device(device).type == "cpu"
        # only where batches are much work, and an evaluation ends with its split
        chunks = isinstance(task, ExampleTask) and task.example_size > 0
        self.ahead = chunks and split == "train" and on_cpu
        self._ready: dict[Position, Batch] = {}
        self._coming: tuple[Position, Future[list[Batch]]] | None = None

    def batch(self, position: Position) -> Batch:
        """The batch at a position; fastest if they are asked for in order."""
        if position not in self._ready:
            chunk = self._take(position)
            self._ready = {batch.position: batch for batch in chunk}
            if self.ahead:
                after = chunk[-1].next
                self._coming = after, _worker().submit(self._make, after)
        # removed: writing into a batch must not change later ones
        return self._ready.pop(position)

    def _take(self, position: Position) -> list[Batch]:
        coming, self._coming = self._coming, None
        if coming is not None and coming[0] == position:
            return coming[1].result()
        return self._make(position)

    def _make(self, position: Position) -> list[Batch]:
        how = {"seed": self.seed, "device": self.device, "dtype": self.dtype}
        return self.task.chunk(self.split, self.B, position, **how)


def prefetch(
    task: Task,
    split: Split,
    B: int,
    *,
    seed: int = 0,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    numbers: range | None = None,
) -> Iterator[Batch]:
    """The batches of one epoch, or those of some numbers; see :class:`Prefetcher` for the rest."""
    batches = Prefetcher(task, split, B, seed=seed, device=device, dtype=dtype)
    numbers = range(task.steps(split, B, seed=seed)) if numbers is None else numbers
    for number in numbers:
        yield batches.batch(Position(0, number))
