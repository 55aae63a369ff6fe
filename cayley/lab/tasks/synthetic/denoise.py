"""The denoise problem: pick ten symbols from noise and remember them."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from cayley.lab.settings import Range
from cayley.lab.tasks.batch import Split
from cayley.lab.tasks.counter import integers, key, random_bits
from cayley.lab.tasks.synthetic.generated import Count
from cayley.lab.tasks.synthetic.recall import PLACES, Recall, one_hot

__all__ = ["Denoise", "Layout", "denoise"]

SYMBOLS = 9
MARKER = 10
Layout = Literal["paper", "code"]
# steps in excess of T
AFTER: dict[Layout, int] = {"paper": PLACES, "code": 2 * PLACES}


def denoise(
    index: Tensor, T: int, *, layout: Layout = "paper", stream: tuple[str | int, ...] = ()
) -> tuple[Tensor, Tensor]:
    """Ten symbols among noise, a marker and blanks; the symbols in order in the last ten steps.

    The first steps have the symbols, 1 to 9, at ten places drawn without replacement, and noise, 0,
    elsewhere; then come the marker 10 and blanks, 0:

    - ``"paper"``: T steps, the marker and nine blanks; the answer begins at the marker;
    - ``"code"``: T + 9 steps, the marker and ten blanks; the answer begins after the marker.

    Note:
        The published code draws the places with replacement, so that some sequences lose a symbol,
        and shows the marker as a zero vector; here it has a symbol of its own. The paper gives
        neither the number of symbols nor the number of blanks: "as soon as it receives the marker"
        is taken as in its copying problem, where the answer begins at the marker.

    References:
        Pospisil, 2023, section 3.4.1; Gated Orthogonal Recurrent Units: On Learning to Forget,
        Jing, Gulcehre, Peurifoy, Shen, Tegmark, Soljačić, Bengio, 2019.

    Arguments:
        index: The numbers of the examples, int64, (B).
        T: The number of steps that hold the symbols, or with ``"code"`` nine less.
        layout: Where symbols, marker and answer are.
        stream: What distinguishes these examples from others, such as a seed and a split.

    Returns:
        Input symbols from 0 to 10 and target classes from 0 to 9, both int64, (T + 10, B), or with
        ``"code"`` (T + 20, B).

    Example:
        >>> x, y = denoise(torch.arange(1), 30)
        >>> torch.equal(x[:30][x[:30] > 0], y[-10:, 0]), x[30].item(), x[31:].sum().item(), len(x)
        (True, 10, 0, 40)
    """
    stretch = T if layout == "paper" else T + PLACES - 1
    steps = torch.arange(stretch, device=index.device).unsqueeze(1)
    lots = random_bits(key(*stream, "places"), index * stretch + steps)
    # the ten largest random numbers win: every set of ten places is equally likely
    places = lots.topk(PLACES, dim=0).indices.sort(0).values
    number = torch.arange(PLACES, device=index.device).unsqueeze(1)
    symbols = 1 + integers(key(*stream, "symbols"), index * PLACES + number, SYMBOLS)
    x = index.new_zeros(T + AFTER[layout], len(index))
    y = torch.zeros_like(x)
    x.scatter_(0, places, symbols)
    x[stretch] = MARKER
    y[-PLACES:] = symbols
    return x, y


@dataclass(frozen=True)
class Denoise(Recall):
    """The denoise problem, with one-hot inputs.

    Arguments:
        T: The number of steps is T + 10, or with ``"code"`` T + 20; T is at least ten.
        layout: Where symbols, marker and answer are, see :func:`denoise`.
        train, valid, test: The number of examples of each split.
        shuffle: Whether each epoch of training has an order of its own.
        fresh: Whether each epoch of training has examples of its own.

    Example:
        >>> task = Denoise(T=100)
        >>> next(task.batches("train", 128)).input.shape
        torch.Size([110, 128, 11])
        >>> round(Denoise(T=100, layout="code").baseline("test")["cross_entropy"], 4)
        0.1831
    """

    T: Annotated[int, Range(PLACES, 10**6)] = 100
    layout: Layout = "paper"
    train: Count = 128_000
    valid: Count = 1_000
    test: Count = 1_000
    shuffle: bool = True
    fresh: bool = True

    naive_rule: ClassVar[str] = "class 0, then any of the 9 symbols: 10 ln 9 / steps"

    @property
    def input_size(self) -> int:
        """Noise, the symbols and the marker."""
        return MARKER + 1

    @property
    def symbols(self) -> int:
        """Nine."""
        return SYMBOLS

    @property
    def length(self) -> int:
        """T + 10, or T + 20."""
        return self.T + AFTER[self.layout]

    def examples(
        self, split: Split, index: Tensor, seed: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, None]:
        """Input (T + 10, B, 11) and target (T + 10, B), or T + 20."""
        x, y = denoise(index, self.T, layout=self.layout, stream=("denoise", seed, split))
        return one_hot(x, self.input_size, dtype), y, None
