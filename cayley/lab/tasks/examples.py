"""Tasks that are sets of examples, each independent of the others."""

from abc import abstractmethod
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from cayley.lab.tasks.counter import key, permutation
from cayley.lab.tasks.task import Batch, Position, Split, Task, following
from cayley.layers.recurrent import check_positive

__all__ = ["ExampleTask", "batches_at_once", "example_numbers"]

AT_ONCE = 2**23


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
        return _order(size, seed, position.epoch)[first:last]
    return torch.arange(first, last)


@lru_cache(maxsize=4)
def _order(size: int, seed: int, epoch: int) -> Tensor:
    return permutation(key(seed, "order", epoch), size)


def batches_at_once(example_size: int, B: int, device: torch.device | str | None) -> int:
    """How many batches are made at once: on the CPU one, on a GPU as many as are worth a launch.

    A batch of a synthetic task is some hundred small operations. Their launches would take as long
    as a training step of a small network; for many batches at once they take hardly longer.

    Arguments:
        example_size: The numbers of an example's input; 0 if examples differ in size.
        B: The number of examples of a batch.
        device: Where they are made.

    Example:
        >>> batches_at_once(400, 50, "cpu"), batches_at_once(400, 50, "cuda")
        (1, 64)
    """
    if example_size == 0 or device is None or torch.device(device).type == "cpu":
        return 1
    return max(1, min(64, AT_ONCE // (example_size * B)))


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
        check_positive("B", B)
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
        after = following(position, self.steps(split, B))
        dtype = torch.get_default_dtype() if dtype is None else dtype
        n = batches_at_once(self.example_size, B, device)
        piece, number = divmod(position.batch, n)
        place = (split, B, n, Position(position.epoch, piece), seed, device, dtype)
        if n == 1:
            made = self._make(*place)
        else:
            # the piece that holds the batch is made once, and the batch cut out of it
            if place not in self._made:
                self._made.clear()
                self._made[place] = self._make(*place)
            made = self._made[place].cut(number * B, B, self.reads, self.answers)
        return Batch(
            made.input, made.target, split, position, after, lengths=made.lengths, index=made.index
        )

    @cached_property
    def _made(self) -> dict[tuple, "_Examples"]:
        return {}

    def _make(
        self,
        split: Split,
        B: int,
        n: int,
        position: Position,
        seed: int,
        device: torch.device | str | None,
        dtype: torch.dtype,
    ) -> "_Examples":
        training = split == "train"
        index = example_numbers(
            self.size(split),
            n * B,
            position,
            seed=seed,
            shuffle=training and self.shuffle,
            fresh=training and self.fresh,
        ).to(device=device)
        return _Examples(index, *self.examples(split, index, seed, dtype))


def _copy(x: Tensor) -> Tensor:
    # a copy, so that whoever writes into a batch does not change the next
    return x.clone(memory_format=torch.contiguous_format)


class _Examples(NamedTuple):
    """Examples of one or more batches."""

    index: Tensor
    input: Tensor
    target: Tensor
    lengths: Tensor | None

    def cut(self, start: int, B: int, reads: str, answers: str) -> "_Examples":
        """The B examples from one on; lengths are no part of what is made at once."""
        B = min(B, len(self.index) - start)
        return _Examples(
            self.index[start : start + B],
            _copy(self.input.narrow(0 if reads == "rows" else 1, start, B)),
            _copy(self.target.narrow(1 if answers == "each" else 0, start, B)),
            None,
        )
