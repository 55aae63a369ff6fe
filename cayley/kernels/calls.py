"""The arguments and results of the recurrences as named tuples, for loops, kernels and gradients.

Each recurrence has three of them: its call, its results, and the gradients of the results. In the
gradients, None stands for 0. Tensors come first in a call.
"""

from typing import NamedTuple, Protocol

from torch import Tensor

__all__ = [
    "ComposedCall",
    "ElmanCall",
    "ElmanGradients",
    "ElmanStates",
    "FactoredCall",
    "GruCall",
    "GruGradients",
    "GruStates",
    "LstmCall",
    "LstmGradients",
    "LstmStates",
    "NormalizedElmanCall",
    "NormalizedElmanGradients",
    "NormalizedElmanStates",
    "RotatedCall",
    "Site",
    "WindowedCall",
]


class ElmanCall(NamedTuple):
    """The arguments of a call of :func:`cayley.recurrences.elman`."""

    x: Tensor
    h0: Tensor
    W: Tensor
    b: Tensor | None = None
    U: Tensor | None = None
    c: Tensor | None = None
    batch_sizes: Tensor | None = None
    reverse: bool = False
    nonlinearity: str = "tanh"
    is_complex: bool = False


class ComposedCall(NamedTuple):
    """The arguments of a call of :func:`cayley.recurrences.composed`."""

    x: Tensor
    h0: Tensor
    w: Tensor
    v: Tensor
    b: Tensor
    permutation: Tensor
    U: Tensor | None = None
    c: Tensor | None = None
    batch_sizes: Tensor | None = None
    reverse: bool = False


class RotatedCall(NamedTuple):
    """The arguments of a call of :func:`cayley.recurrences.rotated`."""

    x: Tensor
    h0: Tensor
    theta: Tensor
    phi: Tensor
    omega: Tensor
    b: Tensor
    U: Tensor | None = None
    c: Tensor | None = None
    batch_sizes: Tensor | None = None
    layers: int = 0
    reverse: bool = False


class FactoredCall(Protocol):
    """What the calls of recurrences have whose matrix is applied by its factors."""

    @property
    def x(self) -> Tensor:
        """The input, (T, B, I) or (N, I), or without U its contribution."""

    @property
    def h0(self) -> Tensor:
        """The state before the first step, (B, 2n)."""

    @property
    def b(self) -> Tensor:
        """The threshold of modReLU, (n)."""

    @property
    def U(self) -> Tensor | None:
        """The input matrix, (2n, I)."""

    @property
    def c(self) -> Tensor | None:
        """A bias that is added to U x, (2n)."""

    @property
    def batch_sizes(self) -> Tensor | None:
        """Of a packed sequence, (T), on the CPU."""

    @property
    def reverse(self) -> bool:
        """Whether time runs from the last step to the first."""


class ElmanStates(NamedTuple):
    """All h, and all z if the derivative of the activation needs them (else an empty tensor)."""

    h: Tensor
    z: Tensor


class ElmanGradients(NamedTuple):
    """The gradients with respect to h and z."""

    h: Tensor
    z: Tensor | None = None


class GruCall(NamedTuple):
    """The arguments of a call of :func:`cayley.recurrences.gru`."""

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
    """The gradients with respect to h and the gates."""

    h: Tensor
    gates: Tensor | None = None


class Site(NamedTuple):
    """One normalisation inside a recurrence.

    Attributes:
        gamma: γ, (F).
        beta: β, (F).
        reference: What is subtracted from all means, (G, ·); None for 0. There are G = B groups
            with one number each, or over the batch one group with F.
        past: Mean, minus the reference, and variance of the K − 1 steps before the first,
            (2, K − 1, G, ·).
        given: Mean and variance to use instead of the sequence's own, (2, T, 1 or B, F).
    """

    gamma: Tensor
    beta: Tensor
    reference: Tensor | None = None
    past: Tensor | None = None
    given: Tensor | None = None


class WindowedCall(Protocol):
    """The settings that all normalisations of a call share."""

    @property
    def weights(self) -> Tensor | None:
        """The number of values of each past step, (K − 1, G, 1)."""

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
        x: The input's contribution to each step, (T, B, H) or (N, H).
        h0: The state before the first step, (B, H).
        W: The recurrent matrix, (H, H).
        input: The normalisation of x.
        recurrent: The normalisation of W h.
        b: The threshold of modReLU, (H).
        weights: The number of values of each past step, (K − 1, B, 1).
        batch_sizes: The batch sizes of a packed sequence, (T), on the CPU.
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
    """The results of a normalised Elman recurrence.

    Attributes:
        h: All states.
        kept: The normalised W h, before γ and β, in the layout of h.
        input, recurrent: For each normalisation and each step: mean and variance of the step, mean
            of its window and the factor 1/√(σ² + ε), (4, T, B, 1), all means minus the reference.
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
        x: The input, (T, B, I) or (N, I), or without U its contribution, (T, B, 4H) or (N, 4H).
        h0: The state before the first step, (B, H).
        c0: The cell before the first step, (B, H).
        W: The recurrent matrix, (4H, H).
        b: A bias that is added to W h, (4H).
        input: The normalisation of the input's contribution; there is no U then.
        recurrent: The normalisation of W h + b; there is no U then.
        cell: The normalisation of the cell.
        weights: The number of values of each past step, (K − 1, G, 1).
        U: The input matrix, (4H, I).
        batch_sizes: The batch sizes of a packed sequence, (T), on the CPU.
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
    """The results of an LSTM.

    Attributes:
        h: All states.
        c: All cells.
        kept: What the gradient cannot compute again: the gates or, if W h + b is normalised, its
            normalised values before γ and β, in the layout of h with 4H features.
        input, recurrent, cell: For each normalisation and each step: mean and variance of the step,
            mean of its window and the factor 1/√(σ² + ε), (4, T, G, ·), all means minus the
            reference; empty if there is none, or if its statistics are given.
    """

    h: Tensor
    c: Tensor
    kept: Tensor
    input: Tensor
    recurrent: Tensor
    cell: Tensor

    def statistics(self) -> tuple[Tensor, Tensor, Tensor]:
        """The statistics of the normalisations."""
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
        """The gradients with respect to the statistics."""
        return self.input, self.recurrent, self.cell
