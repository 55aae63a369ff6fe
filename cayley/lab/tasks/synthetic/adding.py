"""The adding problem: find two numbers far apart in a long sequence, and add them."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from cayley.lab.settings import Range
from cayley.lab.tasks.batch import Batch, Split
from cayley.lab.tasks.counter import integers, key, uniform
from cayley.lab.tasks.metrics import Metric, mean_squared_error
from cayley.lab.tasks.synthetic.generated import Count, GeneratedTask
from cayley.lab.tasks.task import Answers

__all__ = ["Adding", "adding"]

Markers = Literal["halves", "code"]


def adding(
    index: Tensor,
    T: int,
    *,
    stream: tuple[str | int, ...] = (),
    markers: Markers = "halves",
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Sequences of a number and a marker per step, and the sum of the two marked numbers.

    .. math::
        y = \sum_t u_t m_t, \qquad u_t \sim U[0, 1), \quad m_t \in \{0, 1\},

    with one marker in each half of the sequence.

    References:
        Long Short-Term Memory, Hochreiter, Schmidhuber, 1997, section 5.4.
        Unitary Evolution Recurrent Neural Networks, Arjovsky, Shah, Bengio, 2016, section 5.2.

    Arguments:
        index: The numbers of the examples, int64, (B).
        T: The number of steps.
        stream: What distinguishes these examples from others, such as a seed and a split.
        markers: ``"halves"``: the second half begins at ⌊T/2⌋; ``"code"``: at ⌊(T − 1)/2⌋, as in
            the published code of scoRNN.
        dtype: The dtype of the numbers.

    Returns:
        Input (T, B, 2) and target (B, 1).

    Example:
        >>> x, y = adding(torch.arange(5), 20)
        >>> x[..., 1].sum(0), torch.equal((x[..., 0] * x[..., 1]).sum(0), y[:, 0])
        (tensor([2., 2., 2., 2., 2.]), True)
    """
    half = T // 2 if markers == "halves" else (T - 1) // 2
    steps = torch.arange(T, device=index.device)
    u = uniform(key(*stream, "values"), index * T + steps.unsqueeze(1), dtype=dtype)
    first = integers(key(*stream, "first"), index, half)
    second = half + integers(key(*stream, "second"), index, T - half)
    places = torch.stack((first, second))
    m = torch.zeros_like(u).scatter_(0, places, 1.0)
    return torch.stack((u, m), -1), u.gather(0, places).sum(0).unsqueeze(-1)


@dataclass(frozen=True)
class Adding(GeneratedTask):
    """The adding problem, scored by the mean squared error of the output after the last step.

    Arguments:
        T: The number of steps, at least two for each half.
        markers: Where the second half begins, see :func:`adding`.
        train, valid, test: The number of examples of each split.
        shuffle: Whether each epoch of training has an order of its own.
        fresh: Whether each epoch of training has examples of its own.

    Example:
        >>> batch = next(Adding(T=200).batches("train", 50))
        >>> batch.input.shape, batch.target.shape
        (torch.Size([200, 50, 2]), torch.Size([50, 1]))
    """

    T: Annotated[int, Range(4, 10**6)] = 200
    markers: Markers = "halves"
    train: Count = 100_000
    valid: Count = 10_000
    test: Count = 10_000
    shuffle: bool = True
    fresh: bool = False

    answers: ClassVar[Answers] = "last"
    naive_rule: ClassVar[str] = "always 1: the variance of the sum of two uniform numbers, 1/6"

    @property
    def input_size(self) -> int:
        """A number and a marker."""
        return 2

    @property
    def output_size(self) -> int:
        """The sum."""
        return 1

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Mean squared error."""
        return (mean_squared_error,)

    def examples(
        self, split: Split, index: Tensor, seed: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, None]:
        """Input (T, B, 2) and target (B, 1)."""
        stream = ("adding", seed, split)
        return *adding(index, self.T, stream=stream, markers=self.markers, dtype=dtype), None

    def naive(self, batch: Batch) -> Tensor:
        """Always 1, the expected sum."""
        return torch.ones_like(batch.target)

    def baseline(self, split: Split) -> dict[str, float]:
        """1/6."""
        return {"mse": 1 / 6}
