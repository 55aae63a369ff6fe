"""Tasks whose sequences are generated."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Self

from cayley.lab.settings import Range
from cayley.lab.tasks.batch import Split
from cayley.lab.tasks.examples import ExampleTask
from cayley.lab.tasks.task import Reads

__all__ = ["Count", "GeneratedTask", "Length"]

# sequences of a split, and the setting T
Count = Annotated[int, Range(0, 10**9)]
Length = Annotated[int, Range(1, 10**6)]


@dataclass(frozen=True)
class GeneratedTask(ExampleTask):
    """A task of generated sequences, with their length and number as settings."""

    reads: ClassVar[Reads] = "features"

    @property
    @abstractmethod
    def T(self) -> int:
        """The number of steps."""

    @property
    @abstractmethod
    def train(self) -> int:
        """The number of training sequences."""

    @property
    @abstractmethod
    def valid(self) -> int:
        """The number of validation sequences."""

    @property
    @abstractmethod
    def test(self) -> int:
        """The number of test sequences."""

    @property
    def example_size(self) -> int:
        """The features of all steps."""
        return self.T * self.input_size

    def size(self, split: Split) -> int:
        """The number of sequences."""
        return {"train": self.train, "valid": self.valid, "test": self.test}[split]

    def tiny(self) -> Self:
        """Forty short sequences to train on."""
        return replace(self, T=min(self.T, 12), train=40, valid=10, test=10)
