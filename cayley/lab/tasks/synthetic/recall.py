"""Tasks in which symbols are shown and have to be repeated at the end of the sequence."""

import math
from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from cayley.lab.tasks.batch import Batch, Split
from cayley.lab.tasks.metrics import Metric, crossentropy, mean, totals
from cayley.lab.tasks.synthetic.generated import GeneratedTask
from cayley.lab.tasks.task import Answers

__all__ = ["PLACES", "Recall", "one_hot"]

PLACES = 10


def one_hot(symbols: Tensor, n: int, dtype: torch.dtype | None = None) -> Tensor:
    """Unit vectors of a given dtype.

    Example:
        >>> one_hot(torch.tensor([2, 0]), 3)
        tensor([[0., 0., 1.],
                [1., 0., 0.]])
    """
    zeros = torch.zeros(*symbols.shape, n, dtype=dtype, device=symbols.device)
    return zeros.scatter_(-1, symbols.unsqueeze(-1), 1.0)


def _recalled(output: Tensor, batch: Batch) -> Tensor:
    hits = output[-PLACES:].argmax(-1) == batch.target[-PLACES:]
    return totals(hits.double())


accuracy_of_recall = Metric("accuracy", "higher", _recalled, mean)


class Recall(GeneratedTask):
    r"""The targets are ten of s symbols in the last ten steps, and class 0 in all steps before.

    A network that knows the rule but remembers nothing has a cross entropy of

    .. math::
        \frac{10 \ln s}{L}

    on average over the L steps; L is larger than the setting T.
    """

    answers: ClassVar[Answers] = "each"

    @property
    @abstractmethod
    def symbols(self) -> int:
        """The number s of symbols; they are the classes 1 to s."""

    @property
    def length(self) -> int:
        """The number L of steps: T, and ten each for showing and for repeating."""
        return self.T + 2 * PLACES

    @property
    def output_size(self) -> int:
        """The symbols and class 0."""
        return self.symbols + 1

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Cross entropy over all steps, and the share of symbols that are repeated correctly."""
        return crossentropy, accuracy_of_recall

    @property
    def example_size(self) -> int:
        """A unit vector per step."""
        return self.length * self.input_size

    def naive(self, batch: Batch) -> Tensor:
        """Class 0 with certainty, then every symbol with the same probability."""
        T, B = batch.target.shape
        logits = torch.full((T, B, self.output_size), -math.inf, device=batch.target.device)
        logits[:-PLACES, :, 0] = 0.0
        logits[-PLACES:, :, 1:] = 0.0
        return logits

    def baseline(self, split: Split) -> dict[str, float]:
        """10 ln s / L, and an accuracy of 1/s."""
        s = self.symbols
        return {"cross_entropy": PLACES * math.log(s) / self.length, "accuracy": 1 / s}
