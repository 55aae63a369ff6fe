"""The copying problem: remember ten digits over T steps."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from cayley.lab.tasks.batch import Split
from cayley.lab.tasks.counter import integers, key
from cayley.lab.tasks.synthetic.generated import Count, Length
from cayley.lab.tasks.synthetic.recall import PLACES, Recall, one_hot

__all__ = ["Copying", "copying"]

DIGITS = 8
MARKER = 9


def copying(
    index: Tensor, T: int, *, stream: tuple[str | int, ...] = (), delta: int = 1
) -> tuple[Tensor, Tensor]:
    """Ten digits, zeros, a marker and zeros; the digits again in the last ten of T + 20 steps.

    The marker 9 is at step T + 9 + δ, counted from 0. With δ = 1 the first digit is due at the
    marker (T zeros before it, nine after it), with δ = 0 one step after it (T − 1 zeros before it,
    ten after it).

    References:
        Long Short-Term Memory, Hochreiter, Schmidhuber, 1997.
        Unitary Evolution Recurrent Neural Networks, Arjovsky, Shah, Bengio, 2016, section 5.1.

    Arguments:
        index: The numbers of the examples, int64, (B).
        T: The time between the digits and their recall.
        stream: What distinguishes these examples from others, such as a seed and a split.
        delta: δ.

    Returns:
        Input symbols from 0 to 9 and target classes from 0 to 8, both int64, (T + 20, B).

    Example:
        >>> x, y = copying(torch.arange(1), 3)
        >>> torch.equal(x[:10], y[-10:]), x[10:].flatten().tolist()
        (True, [0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    """
    places = torch.arange(PLACES, device=index.device).unsqueeze(1)
    digits = 1 + integers(key(*stream, "digits"), index * PLACES + places, DIGITS)
    x = index.new_zeros(T + 2 * PLACES, len(index))
    y = torch.zeros_like(x)
    x[:PLACES] = digits
    x[T + PLACES - 1 + delta] = MARKER
    y[-PLACES:] = digits
    return x, y


@dataclass(frozen=True)
class Copying(Recall):
    """The copying problem, with one-hot inputs.

    Arguments:
        T: The time between the digits and their recall.
        delta: The position of the marker, see :func:`copying`: 1 as in the papers, 0 as in the
            published code of 2018 to 2020.
        train, valid, test: The number of examples of each split.
        shuffle: Whether each epoch of training has an order of its own.
        fresh: Whether each epoch of training has examples of its own.

    Example:
        >>> task = Copying(T=1000)
        >>> next(task.batches("train", 20)).input.shape
        torch.Size([1020, 20, 10])
        >>> round(task.baseline("test")["cross_entropy"], 6)
        0.020387
    """

    T: Length = 1000
    delta: Literal[0, 1] = 1
    train: Count = 20_000
    valid: Count = 1_000
    test: Count = 1_000
    shuffle: bool = True
    fresh: bool = False

    naive_rule: ClassVar[str] = "class 0, then any of the 8 digits: 10 ln 8 / (T + 20)"

    @property
    def input_size(self) -> int:
        """Zero, the digits and the marker."""
        return MARKER + 1

    @property
    def symbols(self) -> int:
        """Eight digits."""
        return DIGITS

    def examples(
        self, split: Split, index: Tensor, seed: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, None]:
        """Input (T + 20, B, 10) and target (T + 20, B)."""
        x, y = copying(index, self.T, stream=("copying", seed, split), delta=self.delta)
        return one_hot(x, self.input_size, dtype), y, None

    def tiny(self) -> Self:
        """Five steps between."""
        return replace(self, T=min(self.T, 5), train=40, valid=10, test=10)
