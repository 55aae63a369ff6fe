"""Tasks that are sets of examples, each independent of the others."""

from abc import abstractmethod
from functools import lru_cache

import torch
from torch import Tensor

from cayley.lab.tasks.batch import Batch, Position, Split, check_batch_size, following
from cayley.lab.tasks.counter import key, permutation
from cayley.lab.tasks.task import Task

__all__ = ["ExampleTask", "chunk_length", "example_numbers"]

# numbers of the input of all batches of a chunk
CHUNK_NUMBERS = {"cpu": 2**18, "cuda": 2**23}


def example_numbers(
    size: int,
    B: int,
    position: Position,
    *,
    count: int = 1,
    seed: int = 0,
    shuffle: bool = False,
    fresh: bool = False,
) -> Tensor:
    """Which examples are in the batch at a position, or in several from there on.

    Arguments:
        size: The number of examples of an epoch.
        B: The number of examples of a batch; the last of an epoch may have fewer.
        position: The position of the first batch.
        count: The number of batches; fewer at the end of the epoch.
        seed: The seed of the order.
        shuffle: Whether each epoch has an order of its own; otherwise the numbers increase.
        fresh: Whether each epoch has examples of its own.

    Returns:
        Numbers of examples, int64 on the CPU, (count B).

    Example:
        >>> example_numbers(5, 2, Position(1, 2)), example_numbers(5, 2, Position(1, 2), fresh=True)
        (tensor([4]), tensor([9]))
    """
    first, last = position.batch * B, min((position.batch + count) * B, size)
    if fresh:
        return torch.arange(position.epoch * size + first, position.epoch * size + last)
    if shuffle:
        return _order(size, seed, position.epoch)[first:last].clone()
    return torch.arange(first, last)


@lru_cache(maxsize=4)
def _order(size: int, seed: int, epoch: int) -> Tensor:
    return permutation(key(seed, "order", epoch), size)


def chunk_length(example_size: int, B: int, device: torch.device | str | None) -> int:
    """How many batches are made together: on the CPU a few if they are small, on a GPU many.

    Making a batch takes about ten operations, for a synthetic task about a hundred. After a
    training step their data are no longer in the caches of a CPU, and on a GPU their launches would
    take as long as a step of a small network; for several batches together they take hardly longer.

    Arguments:
        example_size: The numbers of an example's input; 0 if examples differ in size.
        B: The number of examples of a batch.
        device: Where they are made.

    Example:
        >>> chunk_length(400, 50, "cpu"), chunk_length(400, 50, "cuda")
        (13, 64)
    """
    if example_size == 0:
        return 1
    kind = "cpu" if device is None or torch.device(device).type == "cpu" else "cuda"
    return max(1, min(64, CHUNK_NUMBERS[kind] // (example_size * B)))


class ExampleTask(Task):
    """A task whose splits are numbered sets of examples; evaluation takes them in order."""

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
            index: The numbers of the examples, on the device of the result, (B).
            seed: The seed of the random parts of the examples.
            dtype: The dtype of floating numbers.
        """

    def steps(self, split: Split, B: int, *, seed: int = 0, epoch: int = 0) -> int:
        """The number of batches of an epoch; the last may be smaller."""
        check_batch_size(B)
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
        return self._make(1, split, B, position, seed, device, dtype)[0]

    def chunk(
        self,
        split: Split,
        B: int,
        position: Position,
        *,
        seed: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> list[Batch]:
        """The batch at a position, and as many after it as :func:`chunk_length` says."""
        check_batch_size(B)
        count = chunk_length(self.example_size, B, device)
        return self._make(count, split, B, position, seed, device, dtype)

    def _make(
        self,
        count: int,
        split: Split,
        B: int,
        position: Position,
        seed: int,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> list[Batch]:
        steps = self.steps(split, B)
        after = following(position, steps)
        training = split == "train"
        index = example_numbers(
            self.size(split),
            B,
            position,
            count=count,
            seed=seed,
            shuffle=training and self.shuffle,
            fresh=training and self.fresh,
        ).to(device=device)
        dtype = torch.get_default_dtype() if dtype is None else dtype
        x, target, lengths = self.examples(split, index, seed, dtype)
        if count == 1:
            return [Batch(x, target, split, position, after, lengths=lengths, index=index)]
        inputs = x.split(B, 0 if self.reads == "rows" else 1)
        targets = target.split(B, 1 if self.answers == "each" else 0)
        batches = []
        for x, target, part in zip(inputs, targets, index.split(B), strict=True):
            after = following(position, steps)
            x, target = x.contiguous(), target.contiguous()
            batches.append(Batch(x, target, split, position, after, index=part))
            position = after
        return batches
