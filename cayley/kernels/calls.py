"""The calls of the recurrences as values: what loops, kernels and gradients are given and give.

Of each recurrence there are three records: its call, what it gives, and the gradients of that. In
the records of gradients, None stands for 0. Tensors come first in a call.
"""

from typing import NamedTuple, Protocol

from torch import Tensor

__all__ = [
    "ElmanCall",
    "ElmanGradients",
    "ElmanStates",
    "GruCall",
    "GruGradients",
    "GruStates",
    "LstmCall",
    "LstmGradients",
    "LstmStates",
    "NormalizedElmanCall",
    "NormalizedElmanGradients",
    "NormalizedElmanStates",
    "Site",
    "WindowedCall",
]


class ElmanCall(NamedTuple):
    """A call of :func:`cayley.recurrences.elman`, whose arguments these are."""

    x: Tensor
    h0: Tensor
    W: Tensor
    b: Tensor | None = None
    U: Tensor | None = None
    c: Tensor | None = None
    batch_sizes: Tensor | None = None
    reverse: bool = False
    nonlinearity: str = "tanh"


class ElmanStates(NamedTuple):
    """All h, and all z where the activation's derivative needs them (else an empty tensor)."""

    h: Tensor
    z: Tensor


class ElmanGradients(NamedTuple):
    """Those with respect to h and z."""

    h: Tensor
    z: Tensor | None = None


class GruCall(NamedTuple):
    """A call of :func:`cayley.recurrences.gru`, whose arguments these are."""

    x: Tensor
    h0: Tensor
    W: Tensor
    b: Tensor | None = None
    U: Tensor | None = None
    c: Tensor | None = None
    batch_sizes: Tensor | None = None
    reverse: bool = False


class GruStates(NamedTuple):
    """All h, and all gates [r, u, c] in the layout of h with 3H features."""

    h: Tensor
    gates: Tensor


class GruGradients(NamedTuple):
    """Those with respect to h and the gates."""

    h: Tensor
    gates: Tensor | None = None


class Site(NamedTuple):
    """One normalisation inside a recurrence.

    Attributes:
        gamma: γ, (F).
        beta: β, (F).
        reference: What all means are measured from, (G, ·); None for 0. There are G = B groups with
            one number each, or over the batch one group with F.
        past: Mean, less the reference, and variance of the K − 1 steps before the first,
            (2, K − 1, G, ·).
        given: Mean and variance to use in place of the sequence's own, (2, T, 1 or B, F).
    """

    gamma: Tensor
    beta: Tensor
    reference: Tensor | None = None
    past: Tensor | None = None
    given: Tensor | None = None


class WindowedCall(Protocol):
    """What a call with normalisations says about all of them."""

    @property
    def weights(self) -> Tensor | None:
        """The number of values behind each step of the past, (K − 1, G, 1)."""

    @property
    def batch_sizes(self) -> Tensor | None:
        """Of a packed sequence, (T), on the CPU."""

    @property
    def window(self) -> int:
        """The number K of steps."""

    @property
    def over_batch(self) -> bool:
        """Whether statistics are taken over the batch."""

    @property
    def eps(self) -> float:
        """The ε of the normalisations."""


class NormalizedElmanCall(NamedTuple):
    """A call of :func:`cayley.recurrences.normalized_elman`, as its operator takes it.

    Attributes:
        x: What the input contributes to each step, (T, B, H) or (N, H).
        h0: The state before the first step, (B, H).
        W: The recurrent matrix, (H, H).
        input: The normalisation of x.
        recurrent: That of W h.
        b: The threshold of modReLU, (H).
        weights: The number of values behind each step of the past, (K − 1, B, 1).
        batch_sizes: Of a packed sequence, (T), on the CPU.
        window: The number K of steps.
        eps: The ε of the normalisations.
        nonlinearity: A key of :data:`cayley.activations.ACTIVATIONS`.
    """

    x: Tensor
    h0: Tensor
    W: Tensor
    input: Site
    recurrent: Site
    b: Tensor | None = None
    weights: Tensor | None = None
    batch_sizes: Tensor | None = None
    window: int = 1
    eps: float = 1e-5
    nonlinearity: str = "tanh"

    @property
    def over_batch(self) -> bool:
        """False: statistics are those of each example."""
        return False


class NormalizedElmanStates(NamedTuple):
    """What it gives.

    Attributes:
        h: All states.
        kept: What is normalised of W h, before γ and β, in the layout of h.
        input, recurrent: Of each normalisation, for each step: mean and variance of the step, mean
            of its window and the scale by which it is divided, (4, T, B, 1), all means less the
            reference.
    """

    h: Tensor
    kept: Tensor
    input: Tensor
    recurrent: Tensor


class NormalizedElmanGradients(NamedTuple):
    """Those with respect to the results; that of ``kept`` is not used."""

    h: Tensor
    kept: Tensor | None = None
    input: Tensor | None = None
    recurrent: Tensor | None = None


class LstmCall(NamedTuple):
    """A call of :func:`cayley.recurrences.lstm`, as its operator takes it.

    Attributes:
        x: The input, (T, B, I) or (N, I), or without U what it contributes, (T, B, 4H) or (N, 4H).
        h0: The state before the first step, (B, H).
        c0: The cell before the first step, (B, H).
        W: The recurrent matrix, (4H, H).
        b: A bias beside it, (4H).
        input: The normalisation of what the input contributes; there is no U then.
        recurrent: That of W h + b; there is no U then.
        cell: That of the cell.
        weights: The number of values behind each step of the past, (K − 1, G, 1).
        U: The input's matrix, (4H, I).
        batch_sizes: Of a packed sequence, (T), on the CPU.
        window: The number K of steps.
        over_batch: Whether statistics are taken over the batch.
        eps: The ε of the normalisations.
    """

    x: Tensor
    h0: Tensor
    c0: Tensor
    W: Tensor
    b: Tensor | None = None
    input: Site | None = None
    recurrent: Site | None = None
    cell: Site | None = None
    weights: Tensor | None = None
    U: Tensor | None = None
    batch_sizes: Tensor | None = None
    window: int = 1
    over_batch: bool = False
    eps: float = 1e-5

    def sites(self) -> tuple[Site | None, Site | None, Site | None]:
        """The normalisations."""
        return self.input, self.recurrent, self.cell


class LstmStates(NamedTuple):
    """What an LSTM gives.

    Attributes:
        h: All states.
        c: All cells.
        kept: The gates, or where W h + b is normalised what that is before γ and β: what the
            gradient cannot find again, in the layout of h with 4H features.
        input, recurrent, cell: Of each normalisation, for each step: mean and variance of the step,
            mean of its window and the scale by which it is divided, (4, T, G, ·), all means less
            the reference; empty where there is none, or its statistics are given.
    """

    h: Tensor
    c: Tensor
    kept: Tensor
    input: Tensor
    recurrent: Tensor
    cell: Tensor

    def statistics(self) -> tuple[Tensor, Tensor, Tensor]:
        """Those of the normalisations."""
        return self.input, self.recurrent, self.cell


class LstmGradients(NamedTuple):
    """Those with respect to the results; that of ``kept`` is not used."""

    h: Tensor | None = None
    c: Tensor | None = None
    kept: Tensor | None = None
    input: Tensor | None = None
    recurrent: Tensor | None = None
    cell: Tensor | None = None

    def statistics(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Those with respect to the statistics."""
        return self.input, self.recurrent, self.cell
