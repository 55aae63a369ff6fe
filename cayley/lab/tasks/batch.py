"""Batches: the input of a network, its targets, and the position in an epoch."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

__all__ = ["SPLITS", "Batch", "Graph", "Position", "Split", "check_batch_size", "following"]

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")


@dataclass(frozen=True, order=True)
class Position:
    """The position of a run: all that is needed to continue from there.

    Attributes:
        epoch: Completed epochs.
        batch: Completed batches of this epoch.
    """

    epoch: int = 0
    batch: int = 0


class Graph(NamedTuple):
    """Features x (N, I) of nodes, and edges (2, E) from the first row's nodes to the second's."""

    x: Tensor
    edge_index: Tensor


@dataclass(frozen=True)
class Batch:
    """The input of a model, and its targets.

    Attributes:
        input: (T, B, I) features, (T, B) tokens, (B, I) rows, or a :class:`Graph`.
        target: Class numbers, −100 where none is scored, or numbers.
        split: The part of the data.
        position: The position of this batch.
        next: The position after it; ``next.batch`` is 0 exactly at the end of an epoch.
        fresh: Whether the recurrent state starts at zero; otherwise it is carried over, detached,
            from the previous batch.
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


def check_batch_size(B: int) -> None:
    """Raise unless the number of examples of a batch is a positive integer."""
    if not isinstance(B, int) or isinstance(B, bool):
        raise TypeError(f"expected B to be an int, got {type(B).__name__}")
    if B < 1:
        raise ValueError(f"expected B to be at least 1, got {B}")
