"""Networks that read sequences: recurrent layers between an embedding and an output."""

from typing import Any, cast

from torch import Tensor, nn

from cayley.lab.errors import RecipeError
from cayley.lab.recipes import ModelSettings

__all__ = ["SequenceModel", "features_of"]


class SequenceModel(nn.Module):
    """Recurrent layers between an embedding of tokens and a linear output.

    Note:
        Of the state of an LSTM, h and c are carried from batch to batch; windows of assorted-time
        normalisation start empty in each, as in the published code.

    Arguments:
        layers: With the contract of ``nn.RNN``, one after the other.
        vocabulary: The number of different tokens, 0 if the input is features.
        outputs: The number p of outputs.
        last: Whether only the last step is answered.
        settings: Of the embedding, the dropouts and the output.

    Shapes:
        Input (T, B, I), or tokens (T, B), and the state of the batch before, a tuple with one
        element a layer ↦ output (T, B, p), or (B, p) if only the last step is answered, and the
        state.
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
        self.dropout = nn.Dropout(settings.dropout)
        self.embedding_dropout = nn.Dropout(settings.embedding_dropout)
        self.output_dropout = nn.Dropout(settings.output_dropout)
        self.output = nn.Linear(features, outputs)
        if settings.output_init == "glorot":
            nn.init.xavier_uniform_(self.output.weight)
            nn.init.zeros_(self.output.bias)
        if settings.tied:
            if self.embedding is None or self.embedding.weight.shape != self.output.weight.shape:
                raise RecipeError(
                    f"model.tied: expected an embedding of size {features}, the features of the "
                    f"last layer, and as many tokens as outputs, got embedding="
                    f"{settings.embedding}, {vocabulary} tokens and {outputs} outputs"
                )
            # not the other way round: an embedding's N(0, 1) makes logits of size √features
            self.embedding.weight = self.output.weight

    def forward(
        self, input: Tensor, state: tuple[Any, ...] | None = None
    ) -> tuple[Tensor, tuple[Any, ...]]:
        """Answers and the state after the last step."""
        x = input
        if self.embedding is not None:
            x = self.embedding_dropout(self.embedding(x))
        elif self.vocabulary:
            x = nn.functional.one_hot(x, self.vocabulary).to(self.output.weight.dtype)
        states = []
        for number, layer in enumerate(self.layers):
            x = x if number == 0 else self.dropout(x)
            hx = None if state is None else state[number]
            x, hx = layer(x, hx)
            states.append(hx[:2] if isinstance(hx, tuple) else hx)
        x = x[-1] if self.last else x
        return self.output(self.output_dropout(x)), tuple(states)


def features_of(layer: nn.Module) -> int:
    """The number of features of a recurrent layer's output."""
    if isinstance(layer, nn.RNNBase):
        return (layer.proj_size or layer.hidden_size) * (2 if layer.bidirectional else 1)
    return cast(int, layer.output_size)
