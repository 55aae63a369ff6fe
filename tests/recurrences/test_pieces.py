"""Without a gradient, long sequences are computed piece by piece, with the same numbers."""

from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

import cayley
from cayley.kernels.observation import observed
from cayley.kernels.operator import Operator
from cayley.recurrences import pieces

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]
LAYERS: dict[str, Callable[..., nn.Module]] = {
    "gru": cayley.NCGRU,
    "lstm": cayley.LSTM,
    "complex": cayley.ScuRNN,
    "factors": cayley.URNN,
    "bidirectional": lambda *sizes: cayley.NCGRU(*sizes, bidirectional=True),
    "layer": lambda *sizes: cayley.LSTM(*sizes, norm="layer"),
}
T, B = 150, 3


@pytest.fixture
def calls() -> Iterator[list[int]]:
    """The numbers of steps of all calls, of which pieces have 64."""
    seen: list[int] = []
    forward = Operator.forward

    def counted(self: Operator, call: Any, backend: str) -> Any:
        seen.append(call.x.shape[0])
        return forward(self, call, backend)

    small = (1, 64)
    with (
        patch.object(Operator, "forward", counted),
        patch.dict(pieces.SIZES, cpu=small),
        patch.object(pieces, "OTHER_SIZES", small),
    ):
        yield seen


def made(name: str, device: str = "cpu") -> tuple[nn.Module, Tensor]:
    layer = LAYERS[name](2, 5).to(device, torch.float32)
    return layer, torch.randn(T, B, 2, dtype=torch.float32, device=device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", LAYERS)
def test_the_numbers_are_those_of_a_pass_with_gradients(
    name: str, device: str, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cayley.layers.elman.prefers_factors", lambda w: name == "factors")
    layer, x = made(name, device)
    expected = layer(x)
    del calls[:]
    with torch.no_grad():
        found = layer(x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    if device == "cpu":
        alone = [64, 64, 22]
        assert calls == {"bidirectional": [*alone, 22, 64, 64], "layer": [T]}.get(name, alone)


def test_what_is_not_divided(calls: list[int]) -> None:
    layer, x = made("gru")
    layer(x)
    with torch.no_grad():
        layer(nn.utils.rnn.pack_sequence([*x.unbind(1)]))
        with observed(lambda run: None):
            layer(x)
        # nothing is saved beside its states
        cayley.ScoRNN(2, 5).float()(x)
    assert calls == [T, T * B, T, T]


def test_short_sequences_are_not_divided() -> None:
    x, h0 = torch.zeros(8, 1, 1), torch.zeros(1, 2**21)
    longer = torch.zeros(9, 1, 1)
    with torch.no_grad():
        assert pieces.piece_steps(x, h0, None) is None
        assert pieces.piece_steps(longer, h0, None) == 8
        assert pieces.piece_steps(longer, h0[:0], None) is None
        assert pieces.piece_steps(longer.to("meta"), h0.to("meta"), None) is None
