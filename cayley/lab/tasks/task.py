"""What every task of the laboratory is: batches by position, a loss, metrics, a naive predictor."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from cayley.lab.data import Resource
from cayley.lab.tasks.metrics import Metric

__all__ = ["SPLITS", "Answers", "Batch", "Graph", "Position", "Reads", "Split", "Task", "evaluate"]

Split = Literal["train", "valid", "test"]
Reads = Literal["features", "tokens", "rows", "graph"]
Answers = Literal["last", "each", "rows", "nodes"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")

Predict = Callable[["Batch", Any], tuple[Tensor, Any]]


@dataclass(frozen=True, order=True)
class Position:
    """Where a run is: all it takes to go on from there.

    Attributes:
        epoch: Epochs that are over.
        batch: Batches of this epoch that are over.
    """

    epoch: int = 0
    batch: int = 0


class Graph(NamedTuple):
    """Features x (N, I) of nodes, and edges (2, E) from the first row's nodes to the second's."""

    x: Tensor
    edge_index: Tensor


@dataclass(frozen=True)
class Batch:
    """What a model reads, and what it should answer.

    Attributes:
        input: (T, B, I) features, (T, B) tokens, (B, I) rows, or a :class:`Graph`.
        target: The answers: class numbers with −100 where none is wanted, or numbers.
        split: Which part of the data this is.
        position: Of this batch.
        next: Where to go on after it; ``next.batch`` is 0 exactly at the end of an epoch.
        fresh: Whether the recurrent state starts anew; otherwise it is carried over, detached,
            from the batch before.
        lengths: The number of valid steps of each sequence, (B); None if all are.
        index: Which examples of the split these are, (B).
    """

    input: Tensor | Graph
    target: Tensor
    split: Split
    position: Position
    next: Position
    fresh: bool = True
    lengths: Tensor | None = None
    index: Tensor | None = None


class Task(ABC):
    """A problem that a network is trained on. Subclasses are frozen dataclasses of settings.

    A batch is a pure function of the settings, split, seed and position: what is stored of a run
    is two integers, and whatever goes on from them sees the same numbers.

    Attributes:
        reads: The kind of input, see :class:`Batch`.
        answers: What the model returns: (B, p) after the last step, (T, B, p) at each step, (B, p)
            for rows, (N, p) for nodes.
        naive_rule: The naive predictor in words, with its formula.

    Example:
        >>> from cayley.lab.tasks import make
        >>> task = make("adding", T=20, train=100)
        >>> batches = list(task.batches("train", 40, start=Position(0, 1)))
        >>> [tuple(batch.input.shape) for batch in batches], batches[-1].next
        ([(20, 40, 2), (20, 20, 2)], Position(epoch=1, batch=0))
    """

    reads: ClassVar[Reads]
    answers: ClassVar[Answers]
    naive_rule: ClassVar[str]

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
        """How answers are scored; the first is the one that papers report."""

    @property
    def needs(self) -> tuple[Resource, ...]:
        """The files that the task reads."""
        return ()

    @abstractmethod
    def size(self, split: Split) -> int:
        """The number of examples of a split: of predictions in a text, of nodes in a graph."""

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

    @abstractmethod
    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """What training makes small, a scalar."""

    @abstractmethod
    def naive(self, batch: Batch) -> Tensor:
        """The output of the naive predictor."""

    @abstractmethod
    def baseline(self, split: Split) -> dict[str, float]:
        """What the naive predictor gets, by metric."""

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
            B: The number of examples a batch: of streams in a text, of nodes in a sampled graph.
            seed: Of what is random in the examples and in their order.
            start: Where to begin; None for the start.
            epochs: Stop when so many epochs are over; None never to stop.
            device: Where the batches are.
            dtype: Of floating numbers.
        """
        if self.size(split) == 0:
            return
        position = Position() if start is None else start
        while epochs is None or position.epoch < epochs:
            batch = self.batch(split, B, position, seed=seed, device=device, dtype=dtype)
            yield batch
            position = batch.next


def following(position: Position, steps: int) -> Position:
    """The position after one, in epochs of ``steps`` batches.

    Example:
        >>> following(Position(3, 8), 10), following(Position(3, 9), 10)
        (Position(epoch=3, batch=9), Position(epoch=4, batch=0))
    """
    if not 0 <= position.batch < steps:
        raise ValueError(
            f"expected a batch from 0 to {steps - 1}, as an epoch has {steps}, got {position}: "
            "resume with the split, the seed and the batch size that it was made with"
        )
    if position.batch + 1 < steps:
        return Position(position.epoch, position.batch + 1)
    return Position(position.epoch + 1, 0)


@torch.no_grad()
def evaluate(
    task: Task,
    predict: Predict,
    split: Split,
    B: int,
    *,
    seed: int = 0,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    metrics: Sequence[Metric] | None = None,
) -> dict[str, float]:
    """Metrics over a whole split, in which every example counts the same.

    Arguments:
        task: The task.
        predict: From a batch and the state after the batch before (None if the batch is fresh):
            the output and the state.
        split: Which part of the data.
        B: The number of examples a batch.
        seed: Of the examples; the default makes all runs share them.
        device: Of the batches.
        dtype: Of floating numbers.
        metrics: Which; None for those of the task.

    Returns:
        The value of each metric that has one, by name.

    Example:
        >>> from cayley.lab.tasks import make
        >>> task = make("adding", T=20, test=999)
        >>> scores = evaluate(task, lambda batch, state: (batch.target, None), "test", 100)
        >>> scores
        {'mse': 0.0}
    """
    if task.size(split) == 0:
        raise ValueError(f"expected examples in the split {split!r}, got none: choose another")
    chosen = task.metrics if metrics is None else metrics
    partials: list[list[Tensor]] = [[] for _ in chosen]
    state = None
    for batch in task.batches(split, B, seed=seed, device=device, dtype=dtype):
        output, state = predict(batch, None if batch.fresh else state)
        for metric, rows in zip(chosen, partials, strict=True):
            rows.append(metric.partial(output, batch))
    pooled = (
        (metric.name, metric.pool(torch.cat(rows)))
        for metric, rows in zip(chosen, partials, strict=True)
    )
    return {name: value for name, value in pooled if value is not None}
