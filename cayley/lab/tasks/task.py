"""The base class of all tasks: batches by position, a loss, metrics, a naive predictor."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from cayley.lab.settings import check_settings
from cayley.lab.tasks.batch import Batch, Position, Split
from cayley.lab.tasks.metrics import IGNORED, Metric, class_loss
from cayley.lab.tasks.sources import Resource

__all__ = ["Answers", "Reads", "Task"]

Reads = Literal["features", "tokens", "rows", "graph"]
Answers = Literal["last", "each", "rows", "nodes"]


class Task(ABC):
    """A problem that a network is trained on. Subclasses are frozen dataclasses of settings.

    Annotations restrict the values of a setting, such as ``Literal["rows", "permuted"]`` or
    ``Annotated[int, Range(1, 100)]``, see :mod:`cayley.lab.settings`. They are checked when a task
    is made, so a subclass with a ``__post_init__`` must call that of this class first.

    A batch is a pure function of the settings, split, seed and position: to resume a run exactly,
    two integers are enough.

    Attributes:
        reads: The kind of input, see :class:`Batch`.
        answers: The outputs of the model: (B, p) after the last step, (T, B, p) at each step,
            (B, p) for rows, (N, p) for nodes.
        naive_rule: The naive predictor in words, with its formula.

    Example:
        >>> from cayley.lab.tasks import make_task
        >>> task = make_task("adding", T=20, train=100)
        >>> batches = list(task.batches("train", 40, start=Position(0, 1)))
        >>> [tuple(batch.input.shape) for batch in batches], batches[-1].next
        ([(20, 40, 2), (20, 20, 2)], Position(epoch=1, batch=0))
    """

    reads: ClassVar[Reads]
    answers: ClassVar[Answers]
    naive_rule: ClassVar[str]

    def __post_init__(self) -> None:
        check_settings(self, "task.")

    @property
    @abstractmethod
    def input_size(self) -> int:
        """The number I of features, or of different tokens."""

    @property
    @abstractmethod
    def output_size(self) -> int:
        """The number p of outputs."""

    @property
    @abstractmethod
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics; the first is the one that papers report."""

    @property
    def needs(self) -> tuple[Resource, ...]:
        """The files that the task reads."""
        return ()

    @property
    def vocabulary_digest(self) -> str:
        """A digest of the tokens in the order of their numbers; empty if no file can change it."""
        return ""

    # most tasks need no files
    def find_data(self) -> None:  # noqa: B027
        """Raise a ``DataError`` if files are missing that may not be downloaded."""

    @abstractmethod
    def size(self, split: Split) -> int:
        """The number of examples of a split; of predictions in a text, of nodes in a graph."""

    @abstractmethod
    def steps(self, split: Split, B: int, *, seed: int = 0, epoch: int = 0) -> int:
        """The number of batches of an epoch; the last may be smaller."""

    @abstractmethod
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
        """The batch at a position, and later ones of its epoch that are best made together."""
        return [self.batch(split, B, position, seed=seed, device=device, dtype=dtype)]

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """The training loss: cross entropy of classes, mean squared error of numbers."""
        if batch.target.is_floating_point():
            return mse_loss(output, batch.target)
        return class_loss(output, batch.target)

    def weight(self, batch: Batch) -> Tensor:
        """How many answers :meth:`loss` of a batch is the mean over, ().

        Processes that share a batch weigh their parts by it. A task with a loss of its own has a
        weight of its own too; without one, each process computes the loss of the whole batch from
        the answers of all of them.
        """
        target = batch.target
        if target.is_floating_point():
            return torch.full((), target.numel(), device=target.device)
        return (target != IGNORED).sum()

    @abstractmethod
    def naive(self, batch: Batch) -> Tensor:
        """The output of the naive predictor."""

    @abstractmethod
    def baseline(self, split: Split) -> dict[str, float]:
        """The scores of the naive predictor, by metric."""

    @abstractmethod
    def tiny(self) -> "Task":
        """The same problem with the same sizes I and p, but short, and without files."""

    def batches(
        self,
        split: Split,
        B: int,
        *,
        seed: int = 0,
        start: Position | None = None,
        epochs: int | None = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Iterator[Batch]:
        """The batches from a position on; none if the split is empty.

        Arguments:
            split: Which part of the data.
            B: The number of examples per batch; of streams in a text, of nodes in a sampled graph.
            seed: The seed of the random parts of the examples and of their order.
            start: Where to begin; None for the beginning.
            epochs: Stop after this many epochs; None never to stop.
            device: Where the batches are.
            dtype: The dtype of floating numbers.
        """
        if self.size(split) == 0:
            return
        position = Position() if start is None else start
        while epochs is None or position.epoch < epochs:
            for batch in self.chunk(split, B, position, seed=seed, device=device, dtype=dtype):
                yield batch
                position = batch.next
