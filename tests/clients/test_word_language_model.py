"""A short version of ``word_language_model`` of pytorch/examples, with one line changed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cayley

TOKENS, FEATURES, HIDDEN, LAYERS, BPTT, BATCH = 11, 8, 8, 2, 7, 4

# what stands in the place of nn.LSTM(ninp, nhid, nlayers, dropout=dropout)
CHANGED: dict[str, Callable[..., Any]] = {
    "ScoRNN": cayley.ScoRNN,
    "NCGRU": cayley.NCGRU,
    "LSTM": cayley.LSTM,
    "LSTM-atn": lambda *sizes, **options: cayley.LSTM(
        *sizes, norm="atn", window=3, plain_state=True, **options
    ),
    "ENRNN": lambda ninp, nhid, nlayers, **options: cayley.ENRNN(
        ninp, nhid // 2, nhid // 2, nlayers, **options
    ),
}


class RNNModel(nn.Module):
    """Encoder, a recurrent module and decoder; the hidden state is unpacked as theirs is."""

    def __init__(self, rnn: Callable[..., Any]) -> None:
        super().__init__()
        self.encoder = nn.Embedding(TOKENS, FEATURES)
        self.rnn = rnn(FEATURES, HIDDEN, LAYERS, dropout=0.1)
        self.decoder = nn.Linear(HIDDEN, TOKENS)
        self.is_lstm = isinstance(self.rnn, cayley.LSTM)

    def forward(self, input: Tensor, hidden: Any) -> tuple[Tensor, Any]:
        output, hidden = self.rnn(self.encoder(input), hidden)
        return self.decoder(output).view(-1, TOKENS), hidden

    def init_hidden(self, size: int) -> Any:
        weight = next(self.parameters())
        zeros = weight.new_zeros(LAYERS, size, HIDDEN)
        return (zeros, weight.new_zeros(LAYERS, size, HIDDEN)) if self.is_lstm else zeros


def repackage_hidden(h: Any) -> Any:
    return h.detach() if isinstance(h, Tensor) else tuple(repackage_hidden(v) for v in h)


def trained(rnn: Callable[..., Any], carried: dict[str, float] | None) -> tuple[Any, list[float]]:
    """A model and the losses of its chunks; the hidden state is repackaged, or carried."""
    model = RNNModel(rnn)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
    # a text that repeats itself
    text = torch.arange(BPTT * 6 + 1)[:, None].add(torch.arange(BATCH)) % TOKENS
    losses = []
    for _ in range(4):
        hidden = model.init_hidden(BATCH)
        for i in range(0, len(text) - 1, BPTT):
            data, targets = text[i : i + BPTT], text[i + 1 : i + 1 + BPTT].reshape(-1)
            optimizer.zero_grad()
            hidden = repackage_hidden(hidden)
            if carried is not None:
                hidden = model.rnn.carry(hidden, **carried)
            output, hidden = model(data, hidden)
            loss = nn.functional.cross_entropy(output, targets)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
            losses.append(loss.item())
    return model, losses


@pytest.mark.parametrize("name", CHANGED)
def test_language_model_learns_chunk_by_chunk(name: str) -> None:
    elman = name in ("ScoRNN", "ENRNN")
    model, losses = trained(CHANGED[name], {"max_norm": 0.5} if elman else None)
    assert sum(losses[-6:]) < 0.9 * sum(losses[:6])
    model.eval()
    with torch.no_grad():
        hidden = model.init_hidden(1)
        word = torch.zeros(1, 1, dtype=torch.long)
        for _ in range(3):  # generate
            output, hidden = model(word, hidden)
            word.fill_(int(output.argmax()))


def test_an_orthogonal_network_adds_up_what_it_carries() -> None:
    """Why ``carry`` is there: with the state as it is, the loss of later chunks grows."""
    _, losses = trained(cayley.ScoRNN, None)
    assert max(losses[-6:]) > max(losses[:3])
