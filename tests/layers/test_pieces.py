"""Without a gradient, long sequences are computed piece by piece, with the same numbers."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

import cayley
from cayley.kernels.observation import observed
from cayley.kernels.operator import Operator
from cayley.layers import pieces
from cayley.layers.recurrent import Recurrent

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]
LAYERS: dict[str, Callable[..., Recurrent]] = {
    "gru": cayley.NCGRU,
    "lstm": cayley.LSTM,
    "complex": cayley.ScuRNN,
    "factors": cayley.URNN,
    "two layers": partial(cayley.NCGRU, num_layers=2),
    "bidirectional": partial(cayley.LSTM, bidirectional=True),
    "layer": partial(cayley.LSTM, norm="layer"),
    "atn": partial(cayley.LSTM, norm="atn", window=7),
    "atn, bidirectional": partial(cayley.LSTM, norm="atn", window=100, bidirectional=True),
    "atn, plain state": partial(cayley.LSTM, norm="atn", window=7, plain_state=True),
}
T, B = 150, 3


@pytest.fixture
def calls() -> Iterator[list[int]]:
    """The numbers of steps of all calls of operators, of which pieces have 64."""
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


def made(name: str, device: str = "cpu") -> tuple[Recurrent, Tensor]:
    # kernels for a GPU know no other precision
    dtype = torch.float64 if device == "cpu" else torch.float32
    layer = LAYERS[name](2, 5).to(device, dtype)
    return layer, torch.randn(T, B, 2, dtype=dtype, device=device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", LAYERS)
def test_the_numbers_are_those_of_a_pass_with_gradients(
    name: str, device: str, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cayley.layers.elman.prefers_factors", lambda w: name == "factors")
    layer, x = made(name, device)
    # with a normalisation, rounding errors grow
    tolerance = 1e-9 if device == "cpu" else 1e-4
    close = partial(torch.testing.assert_close, rtol=tolerance, atol=tolerance)
    expected = layer(x)
    state = layer(torch.randn_like(x))[1]
    after = layer(x, state)
    del calls[:]
    with torch.no_grad():
        close(layer(x), expected)
        if device == "cpu":
            forwards, backwards = [64, 64, 22], [22, 64, 64]
            second = backwards if layer.bidirectional else forwards
            assert calls == (forwards if len([*layer.suffixes()]) == 1 else forwards + second)
        if not layer.plain_state:
            close(layer(x, state), after)


def test_what_is_not_divided(calls: list[int]) -> None:
    layer, x = made("gru")
    layer(x)
    with torch.no_grad():
        layer(nn.utils.rnn.pack_sequence([*x.unbind(1)]))
        with observed(lambda run: None):
            layer(x)
        # nothing is kept beside its states
        cayley.ScoRNN(2, 5)(x)
        # its statistics are those of a step
        cayley.LSTM(2, 5, norm="batch")(x)
    assert calls == [T, T * B, T, T, T]


def test_the_matrix_is_formed_once(calls: list[int]) -> None:
    layer, x = made("gru")
    (matrix,) = layer.matrices()
    with patch.object(matrix.map, "forward", wraps=matrix.map.forward) as formed, torch.no_grad():
        layer(x)
    assert len(calls) == 3
    assert formed.call_count == 1


def test_short_sequences_are_not_divided() -> None:
    x = torch.zeros(9, 2, 1)
    with torch.no_grad():
        assert pieces.piece_steps(x[1:], 2**20) is None
        assert pieces.piece_steps(x, 2**20) == 8
        assert pieces.piece_steps(x[:, :0], 2**20) is None
        assert pieces.piece_steps(x.to("meta"), 2**20) is None
