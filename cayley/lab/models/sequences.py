"""Networks that read sequences: recurrent layers between an embedding and an output."""

from typing import Any

from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import dropout
from torch.nn.modules.dropout import _DropoutNd

from cayley.lab.errors import RecipeError
from cayley.lab.recipes import ModelSettings
from cayley.layers.recurrent import Recurrent

__all__ = [
    "LockedDropout",
    "SequenceModel",
    "draws_randomly",
    "features_of",
    "free_matrices",
    "without_windows",
]


class SequenceModel(nn.Module):
    """Recurrent layers between an embedding of tokens and a linear output.

    Note:
        The state is carried from batch to batch; windows of assorted-time normalisation start empty
        in each, as in the published code.

    Arguments:
        layers: Layers with the contract of ``nn.RNN``, one after the other.
        vocabulary: The number of different tokens, 0 if the input is features.
        outputs: The number p of outputs.
        last: Whether there is an output for the last step only.
        settings: The settings of the embedding, the dropouts and the output.

    References:
        Regularizing and Optimizing LSTM Language Models, Merity, Keskar, Socher, 2018, for word
        dropout (there: embedding dropout), weight dropout and locked dropout.

    Shapes:
        Input (T, B, I), or tokens (T, B), and the state of the previous batch, a tuple with one
        element per layer ↦ output (T, B, p), or (B, p) with ``last``, and the state.
    """

    def __init__(
        self,
        layers: list[nn.Module],
        vocabulary: int,
        outputs: int,
        last: bool,
        settings: ModelSettings,
    ) -> None:
        super().__init__()
        features = features_of(layers[-1])
        self.vocabulary = vocabulary
        self.last = last
        self.embedding = (
            nn.Embedding(vocabulary, settings.embedding) if settings.embedding else None
        )
        self.layers = nn.ModuleList(layers)
        kind = LockedDropout if settings.locked else nn.Dropout
        self.dropout = kind(settings.dropout)
        self.embedding_dropout = kind(settings.embedding_dropout)
        self.output_dropout = kind(settings.output_dropout)
        self.word_dropout = settings.word_dropout
        self.weight_dropout = settings.weight_dropout
        self.output = nn.Linear(features, outputs)
        if settings.output_init != "torch":
            initialize_(self.output.weight, settings.output_init)
            nn.init.zeros_(self.output.bias)
        if self.embedding is not None:
            initialize_(self.embedding.weight, settings.embedding_init)
        if settings.tied:
            if self.embedding is None or self.embedding.weight.shape != self.output.weight.shape:
                raise RecipeError(
                    f"model.tied: expected an embedding of size {features}, the features of the "
                    f"last layer, and as many tokens as outputs, got embedding="
                    f"{settings.embedding}, {vocabulary} tokens and {outputs} outputs"
                )
            self.output.weight = self.embedding.weight

    def forward(
        self, input: Tensor, state: tuple[Any, ...] | None = None
    ) -> tuple[Tensor, tuple[Any, ...]]:
        """The outputs, and the state after the last step."""
        x = self.read(input)
        states = []
        for number, layer in enumerate(self.layers):
            x = x if number == 0 else self.dropout(x)
            hx = None if state is None else state[number]
            if self.training and self.weight_dropout:
                W = {name: dropout(W, self.weight_dropout) for name, W in free_matrices(layer)}
                x, hx = functional_call(layer, W, (x, hx))
            else:
                x, hx = layer(x, hx)
            states.append(without_windows(layer, hx))
        return self.answer(x), tuple(states)

    def read(self, input: Tensor) -> Tensor:
        """What the first layer reads, (T, B, ·)."""
        if self.embedding is not None:
            return self.embedding_dropout(self.embed(self.embedding, input))
        if self.vocabulary:
            return nn.functional.one_hot(input, self.vocabulary).to(self.output.weight.dtype)
        return input

    def answer(self, x: Tensor) -> Tensor:
        """The output, from that of the last layer."""
        output = self.output(self.output_dropout(x[-1:] if self.last else x))
        return output[0] if self.last else output

    def embed(self, embedding: nn.Embedding, tokens: Tensor) -> Tensor:
        """Rows of the embedding; in training, word dropout sets some of them to zero."""
        x = embedding(tokens)
        if self.training and self.word_dropout:
            kept = dropout(x.new_ones(self.vocabulary, 1), self.word_dropout)
            x = x * kept[tokens]
        return x


def draws_randomly(model: nn.Module) -> bool:
    """Whether a network draws random numbers as it learns, by dropout of any kind.

    Example:
        >>> draws_randomly(nn.Dropout(0.0)), draws_randomly(nn.LSTM(1, 1, 2, dropout=0.5))
        (False, True)
    """
    for module in model.modules():
        if isinstance(module, SequenceModel) and (module.word_dropout or module.weight_dropout):
            return True
        if isinstance(module, (_DropoutNd, LockedDropout)) and module.p:
            return True
        if isinstance(module, (Recurrent, nn.RNNBase)) and module.dropout:
            return True
    return False


def without_windows(layer: nn.Module, state: Any) -> Any:
    """The state of a layer without the windows of assorted-time normalisation."""
    if not (isinstance(layer, Recurrent) and layer.streams):
        return state
    *kept, _ = state
    return tuple(kept) if len(kept) > 1 else kept[0]


def features_of(layer: nn.Module) -> int:
    """The number of features of a recurrent layer's output."""
    if isinstance(layer, nn.RNNBase):
        return (layer.proj_size or layer.hidden_size) * (2 if layer.bidirectional else 1)
    size = getattr(layer, "output_size", None)
    if not isinstance(size, int):
        raise RecipeError(
            f"model.name: expected {type(layer).__name__} to have output_size, the number of its "
            f"features, got {size!r}"
        )
    return size


class LockedDropout(nn.Module):
    r"""Dropout with one mask for all steps of a batch (variational dropout).

    .. math:: y_{t,b} = m_b \odot x_{t,b} / (1 - p), \qquad m_b \in \{0, 1\}^F

    References:
        A Theoretically Grounded Application of Dropout in Recurrent Neural Networks, Gal,
        Ghahramani, 2016; Regularizing and Optimizing LSTM Language Models, Merity, Keskar, Socher,
        2018, section 4.2.

    Arguments:
        p: The probability of zero.

    Example:
        >>> import torch
        >>> x = LockedDropout(0.5)(torch.ones(3, 1, 4))
        >>> torch.equal(x[0], x[1]), torch.equal(x[1], x[2])
        (True, True)
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, input: Tensor) -> Tensor:
        """Dropout on sequences (T, B, F)."""
        if not self.training or not self.p:
            return input
        return input * dropout(input.new_ones(1, *input.shape[1:]), self.p)

    def extra_repr(self) -> str:
        """As in nn.Dropout."""
        return f"p={self.p}"


def initialize_(weight: Tensor, init: str | float) -> None:
    """Glorot uniform, uniform with a bound, or as torch left it."""
    if isinstance(init, float):
        nn.init.uniform_(weight, -init, init)
    elif init == "glorot":
        nn.init.xavier_uniform_(weight)


def free_matrices(layer: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The recurrent matrices of a layer that are parameters, by name; structured ones are not."""
    own = layer.named_parameters(recurse=False)
    return [(name, parameter) for name, parameter in own if name.startswith("weight_hh")]
