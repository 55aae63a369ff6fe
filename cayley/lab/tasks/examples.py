"""Tasks that are sets of examples, each independent of the others."""

import os
from abc import abstractmethod
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from cayley.checks import check_integer
from cayley.lab.tasks.counter import key, permutation
from cayley.lab.tasks.task import Batch, Position, Split, Task, following

__all__ = ["ExampleTask", "batches_at_once", "example_numbers"]

# numbers of the input of all batches that are made at once
AT_ONCE = {"cpu": 2**18, "cuda": 2**23}


def example_numbers(
    size: int,
    B: int,
    position: Position,
    *,
    seed: int = 0,
    shuffle: bool = False,
    fresh: bool = False,
) -> Tensor:
    """Which examples are in the batch at a position.

    Arguments:
        size: The number of examples of an epoch.
        B: The number of examples of a batch; the last of an epoch may have fewer.
        position: Of the batch.
        seed: Of the order.
        shuffle: Whether each epoch has an order of its own; otherwise the numbers ascend.
        fresh: Whether each epoch has examples of its own.

    Returns:
        Numbers of examples, int64 on the CPU, (B).

    Example:
        >>> example_numbers(5, 2, Position(1, 2)), example_numbers(5, 2, Position(1, 2), fresh=True)
        (tensor([4]), tensor([9]))
    """
    first, last = position.batch * B, min((position.batch + 1) * B, size)
    if fresh:
        return torch.arange(position.epoch * size + first, position.epoch * size + last)
    if shuffle:
        return _order(size, seed, position.epoch)[first:last].clone()
    return torch.arange(first, last)


@lru_cache(maxsize=4)
def _order(size: int, seed: int, epoch: int) -> Tensor:
    return permutation(key(seed, "order", epoch), size)


def batches_at_once(example_size: int, B: int, device: torch.device | str | None) -> int:
    """How many batches are made at once: on the CPU a few if they are small, on a GPU many.

    A batch is some ten operations, of a synthetic task some hundred. After a training step they
    find nothing of theirs in the caches of a CPU, and on a GPU their launches would take as long as
    a step of a small network; for several batches at once they take hardly longer.

    Arguments:
        example_size: The numbers of an example's input; 0 if examples differ in size.
        B: The number of examples of a batch.
        device: Where they are made.

    Example:
        >>> batches_at_once(400, 50, "cpu"), batches_at_once(400, 50, "cuda")
        (13, 64)
    """
    if example_size == 0:
        return 1
    kind = "cpu" if device is None or torch.device(device).type == "cpu" else "cuda"
    return max(1, min(64, AT_ONCE[kind] // (example_size * B)))


@cache
def _beside() -> ThreadPoolExecutor:
    """A thread that makes batches while those before them are learnt from."""
    return ThreadPoolExecutor(1, "cayley-batch")


# threads do not live on in a process that is forked off
os.register_at_fork(after_in_child=_beside.cache_clear)


class ExampleTask(Task):
    """A task whose split is a numbered set of examples, which testing takes in order."""

    @property
    def shuffle(self) -> bool:
        """Whether each epoch of training has an order of its own."""
        return True

    @property
    def example_size(self) -> int:
        """The numbers of an example's input; 0 if examples differ in size."""
        return 0

    @property
    def fresh(self) -> bool:
        """Whether each epoch of training has examples of its own."""
        return False

    @abstractmethod
    def examples(
        self, split: Split, index: Tensor, seed: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Input, target and lengths (or None) of examples.

        Arguments:
            split: Which part of the data.
            index: The numbers of the examples, on the device that is asked for, (B).
            seed: Of what is random in the examples.
            dtype: Of floating numbers.
        """

    def steps(self, split: Split, B: int, *, seed: int = 0, epoch: int = 0) -> int:
        """The number of batches of an epoch; the last may be smaller."""
        check_integer("B", B)
        return -(-self.size(split) // B)

    def batch(
        self,
        split: Split,
        B: int,
        position: Position,
        *,
        seed: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Batch:
        """The batch at a position."""
        dtype = torch.get_default_dtype() if dtype is None else dtype
        wanted = (split, B, position, seed, device, dtype)
        if wanted not in self._ready:
            coming = self._coming.pop(wanted, None)
            self._ready.clear()
            self._coming.clear()
            self._ready.update(self._piece(*wanted) if coming is None else coming.result())
            on_cpu = device is None or torch.device(device).type == "cpu"
            # an evaluation ends with its split, and what comes after it is not wanted
            if split == "train" and self.example_size > 0 and on_cpu:
                last = next(reversed(self._ready.values()))
                after = (split, B, last.next, seed, device, dtype)
                self._coming[after] = _beside().submit(self._piece, *after)
        # given away, so that whoever writes into a batch does not change what another gets
        return self._ready.pop(wanted)

    @cached_property
    def _ready(self) -> dict[tuple, Batch]:
        return {}

    @cached_property
    def _coming(self) -> dict[tuple, Future[dict[tuple, Batch]]]:
        return {}

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_coming"}

    def _piece(self, split: Split, B: int, position: Position, *how: Any) -> dict[tuple, Batch]:
        """The batch at a position, and those that are made with it."""
        made = self._make(split, B, position, *how)
        return {(split, B, batch.position, *how): batch for batch in made}

    def _make(
        self,
        split: Split,
        B: int,
        position: Position,
        seed: int,
        device: torch.device | str | None,
        dtype: torch.dtype,
    ) -> Iterator[Batch]:
        """The batch at a position, among those that are made with it."""
        steps = self.steps(split, B)
        after = following(position, steps)
        n = batches_at_once(self.example_size, B, device)
        piece = position.batch // n
        training = split == "train"
        index = example_numbers(
            self.size(split),
            n * B,
            Position(position.epoch, piece),
            seed=seed,
            shuffle=training and self.shuffle,
            fresh=training and self.fresh,
        ).to(device=device)
        x, target, lengths = self.examples(split, index, seed, dtype)
        if n == 1:
            yield Batch(x, target, split, position, after, lengths=lengths, index=index)
            return
        parts = zip(
            index.split(B),
            x.split(B, 0 if self.reads == "rows" else 1),
            target.split(B, 1 if self.answers == "each" else 0),
            strict=True,
        )
        for number, (index, x, target) in enumerate(parts, piece * n):
            at = Position(position.epoch, number)
            yield Batch(
                x.contiguous(),
                target.contiguous(),
                split,
                at,
                following(at, steps),
                index=index,
            )
