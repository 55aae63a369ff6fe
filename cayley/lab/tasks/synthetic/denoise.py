"""The denoise problem: ten symbols to be picked from noise and remembered."""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from cayley.lab.tasks.batch import Split
from cayley.lab.tasks.counter import integers, key, random_bits
from cayley.lab.tasks.synthetic.generated import Count, Length
from cayley.lab.tasks.synthetic.recall import PLACES, Recall, one_hot

__all__ = ["Denoise", "denoise"]

SYMBOLS = 9
MARKER = 10


def denoise(index: Tensor, T: int, *, stream: tuple[str | int, ...] = ()) -> tuple[Tensor, Tensor]:
    """Ten symbols among noise, a marker and blanks; the symbols in order in the last ten steps.

    The first T + 9 steps hold the symbols, 1 to 9, at ten places drawn without replacement, and
    noise, 0, elsewhere; then come the marker 10 and ten blanks, 0.

    Note:
        The published code draws the places with replacement, so that some sequences lose a
        symbol, and shows the marker as a zero vector; here it has a symbol of its own.

    References:
        Gated Orthogonal Recurrent Units: On Learning to Forget, Jing, Gulcehre, Peurifoy, Shen,
        Tegmark, Soljačić, Bengio, 2019.

    Arguments:
        index: The numbers of the examples, int64, (B).
        T: The number of steps is T + 20.
        stream: What makes these examples differ from others, such as a seed and a split.

    Returns:
        Input symbols from 0 to 10 and target classes from 0 to 9, both int64, (T + 20, B).

    Example:
        >>> x, y = denoise(torch.arange(1), 30)
        >>> torch.equal(x[:39][x[:39] > 0], y[-10:, 0]), x[39].item(), x[40:].sum().item()
        (True, 10, 0)
    """
    stretch = T + PLACES - 1
    steps = torch.arange(stretch, device=index.device).unsqueeze(1)
    lots = random_bits(key(*stream, "places"), index * stretch + steps)
    # the ten largest lots win: every set of ten places is as likely as any other
    places = lots.topk(PLACES, dim=0).indices.sort(0).values
    number = torch.arange(PLACES, device=index.device).unsqueeze(1)
    symbols = 1 + integers(key(*stream, "symbols"), index * PLACES + number, SYMBOLS)
    x = index.new_zeros(T + 2 * PLACES, len(index))
    y = torch.zeros_like(x)
    x.scatter_(0, places, symbols)
    x[stretch] = MARKER
    y[-PLACES:] = symbols
    return x, y


@dataclass(frozen=True)
class Denoise(Recall):
    """The denoise problem, with one-hot inputs.

    Arguments:
        T: The number of steps is T + 20.
        train, valid, test: The number of examples of each split.
        shuffle: Whether each epoch of training has an order of its own.
        fresh: Whether each epoch of training has examples of its own.

    Example:
        >>> task = Denoise(T=100)
        >>> next(task.batches("train", 128)).input.shape
        torch.Size([120, 128, 11])
        >>> round(task.baseline("test")["cross_entropy"], 4)
        0.1831
    """

    T: Length = 100
    train: Count = 128_000
    valid: Count = 1_000
    test: Count = 1_000
    shuffle: bool = True
    fresh: bool = True

    naive_rule: ClassVar[str] = "class 0, then any of the 9 symbols: 10 ln 9 / (T + 20)"

    @property
    def input_size(self) -> int:
        """Noise, the symbols and the marker."""
        return MARKER + 1

    @property
    def symbols(self) -> int:
        """Nine."""
        return SYMBOLS

    def examples(
        self, split: Split, index: Tensor, seed: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, None]:
        """Input (T + 20, B, 11) and target (T + 20, B)."""
        x, y = denoise(index, self.T, stream=("denoise", seed, split))
        return one_hot(x, self.input_size, dtype), y, None

    def tiny(self) -> Self:
        """Fifteen steps of noise and symbols."""
        return replace(self, T=min(self.T, 6), train=40, valid=10, test=10)
