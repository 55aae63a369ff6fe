"""The shortest way to a task of your own: sizes, when to answer, and a function that draws."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from cayley.lab.errors import RecipeError
from cayley.lab.tasks.batch import Batch, Split
from cayley.lab.tasks.draws import Draws
from cayley.lab.tasks.frequencies import count_classes, frequency_logits
from cayley.lab.tasks.metrics import IGNORED, Metric, accuracy, crossentropy, mean_squared_error
from cayley.lab.tasks.scoring import score_split
from cayley.lab.tasks.synthetic.generated import Count, GeneratedTask, Length

__all__ = ["DrawnTask"]

# the number of examples that determine the naive predictor and its scores
SAMPLE = 1_000


@dataclass(frozen=True)
class DrawnTask(GeneratedTask):
    """A task of drawn sequences. A subclass defines four things, and the rest follows from them.

    Targets are classes, int64, or numbers; that determines the metrics and the naive predictor,
    which is the mean, or the frequencies of the classes, of a thousand training examples.

    Attributes:
        input_size: The number of inputs at each step.
        output_size: The number of outputs, or of classes.
        answers: ``"last"``, after the last step, or ``"each"``, at every step.

    Arguments:
        T: The number of steps.
        train, valid, test: The number of examples of each split.

    Example:
        >>> class Mean(DrawnTask):
        ...     input_size = output_size = 1
        ...     answers = "last"
        ...     def draw(self, draws):
        ...         x = draws.uniform(self.T, 1)
        ...         return x, x.mean(0)
        >>> batch = next(Mean(T=20).batches("train", 5))
        >>> batch.input.shape, batch.target.shape
        (torch.Size([20, 5, 1]), torch.Size([5, 1]))
    """

    T: Length = 100
    train: Count = 10_000
    valid: Count = 1_000
    test: Count = 1_000

    # properties of other tasks are constants here
    input_size: ClassVar[int]  # pyrefly: ignore[bad-override]
    output_size: ClassVar[int]  # pyrefly: ignore[bad-override]
    naive_rule: ClassVar[str] = "the mean, or the frequencies of classes, of the training targets"

    @abstractmethod
    def draw(self, draws: Draws) -> tuple[Tensor, Tensor]:
        """Input (T, B, I) and target of B examples.

        The target is (B, p) numbers or (B) classes for ``"last"``, (T, B, p) or (T, B) for
        ``"each"``; a class of −100 is not scored.
        """

    def examples(
        self, split: Split, index: Tensor, seed: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, None]:
        """What :meth:`draw` draws."""
        name = type(self).__name__
        drawn = self.draw(Draws((name, seed, split), index, dtype))
        self._check(drawn, len(index))
        return *drawn, None

    def _check(self, drawn: object, B: int) -> None:
        """Raise unless it is what :meth:`draw` promises: a loss may accept other shapes, too."""
        name = type(self).__name__
        if self.answers not in ("last", "each"):
            raise RecipeError(f'{name}.answers: expected "last" or "each", got {self.answers!r}')
        if not (isinstance(drawn, tuple) and [*map(type, drawn)] == [Tensor, Tensor]):
            got = (
                f"{len(drawn)} things" if isinstance(drawn, tuple) else f"a {type(drawn).__name__}"
            )
            raise RecipeError(f"{name}.draw: expected input and target, two tensors, got {got}")
        x, target = drawn
        if x.dim() != 3 or x.shape[1:] != (B, self.input_size):
            raise RecipeError(
                f"{name}.draw: expected input (T, B, input_size), with B = {B} and input_size = "
                f"{self.input_size}, got {tuple(x.shape)}"
            )
        expected = (len(x), B) if self.answers == "each" else (B,)
        what = "classes"
        if target.is_floating_point():
            expected, what = (*expected, self.output_size), "numbers"
        if target.shape != expected:
            raise RecipeError(
                f"{name}.draw: expected {what} {expected} as target, since answers = "
                f"{self.answers!r} and output_size = {self.output_size}, got {tuple(target.shape)}"
            )
        if not x.is_floating_point():
            raise RecipeError(f"{name}.draw: expected floating-point input, got {x.dtype}")
        if what == "numbers":
            return
        if target.dtype != torch.int64:
            raise RecipeError(
                f"{name}.draw: expected numbers, or classes in torch.int64, as target, got "
                f"{target.dtype}: convert it, such as by target.long()"
            )
        known = (target >= 0) & (target < self.output_size) | (target == IGNORED)
        if not known.all():
            raise RecipeError(
                f"{name}.draw: expected classes 0, …, {self.output_size - 1}, since output_size = "
                f"{self.output_size}, or {IGNORED} for none, got {int(target[~known][0])}"
            )

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The mean squared error of numbers; accuracy and cross entropy of classes."""
        if self._targets.is_floating_point():
            return (mean_squared_error,)
        return accuracy, crossentropy

    def naive(self, batch: Batch) -> Tensor:
        """The mean, or the logarithms of the frequencies, of the training targets."""
        device = batch.target.device
        if self._targets.is_floating_point():
            mean = self._targets.flatten(0, -2).mean(0)
            return mean.to(batch.target).expand_as(batch.target)
        logits = frequency_logits(count_classes(self._targets, self.output_size))
        return logits.to(device).expand(*batch.target.shape, -1)

    def baseline(self, split: Split) -> dict[str, float]:
        """The scores of the naive predictor on the first thousand examples."""
        few = replace(self, **{split: min(self.size(split), SAMPLE)})
        return score_split(few, lambda batch, state: (self.naive(batch), None), split, SAMPLE)

    @cached_property
    def _targets(self) -> Tensor:
        index = torch.arange(min(self.train, SAMPLE))
        return self.examples("train", index, 0, torch.get_default_dtype())[1]
