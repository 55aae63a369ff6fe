"""Random numbers for examples: each example has its own, independent of its batch."""

import math

import torch
from torch import Tensor

from cayley.lab.tasks.counter import integers, key, normal, uniform

__all__ = ["Draws"]


class Draws:
    """Draws numbers for B examples, along the second axis of the result.

    Each call draws new numbers; an example gets the same ones in every batch and on every device.

    Arguments:
        stream: What distinguishes these numbers from others, such as a seed and a split.
        index: The numbers of the examples, int64, (B).
        dtype: The dtype of floating numbers.

    Example:
        >>> few, more = Draws(("mine", 1), torch.arange(3)), Draws(("mine", 1), torch.arange(5))
        >>> torch.equal(few.uniform(20, 2), more.uniform(20, 2)[:, :3])
        True
    """

    def __init__(
        self, stream: tuple[str | int, ...], index: Tensor, dtype: torch.dtype | None = None
    ) -> None:
        self.stream = stream
        self.index = index
        self.dtype = dtype
        self.calls = 0

    def uniform(self, *shape: int) -> Tensor:
        """Numbers in [0, 1): (B) for no shape, (T, B) for T, (T, B, I) for T and I."""
        return uniform(self._key(), self._place(shape), dtype=self.dtype)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers, in the same shapes."""
        return normal(self._key(), self._place(shape), dtype=self.dtype)

    def integers(self, n: int, *shape: int) -> Tensor:
        """Integers in {0, …, n − 1}, int64, in the same shapes."""
        return integers(self._key(), self._place(shape), n)

    def _key(self) -> int:
        self.calls += 1
        return key(*self.stream, self.calls)

    def _place(self, shape: tuple[int, ...]) -> Tensor:
        if not shape:
            return self.index
        size = math.prod(shape)
        place = torch.arange(size, device=self.index.device).view(shape).unsqueeze(1)
        examples = self.index.view(1, -1, *[1] * (len(shape) - 1))
        return place + size * examples
