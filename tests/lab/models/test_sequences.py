from typing import Any

import pytest
import torch

from cayley.lab.models import build_model
from cayley.lab.recipes.reading import from_table
from cayley.lab.recipes.schema import ModelSettings
from cayley.lab.tasks import make_task

CHARACTERS, COPYING = make_task("characters"), make_task("copying", T=100)


def model_settings(name: str, hidden: Any, **others: Any) -> ModelSettings:
    return from_table(ModelSettings, {"name": name, "hidden": hidden, **others})


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "LSTM", "hidden": 5, "layers": 2},
        {"name": "LSTM", "hidden": [5, 7], "norm": "layer"},
        {"name": "NCGRU", "hidden": [5, 7, 6], "embedding": 6, "tied": True},
        {"name": "torch.GRU", "hidden": 4, "layers": 2},
    ],
)
def test_the_state_carries_a_text_on(settings: dict[str, Any]) -> None:
    """Two halves with the state in between are the whole."""
    model = build_model(from_table(ModelSettings, settings), CHARACTERS)
    x = torch.randint(50, (12, 3))
    whole, last = model(x)
    first, state = model(x[:5])
    second, state = model(x[5:], state)
    torch.testing.assert_close(torch.cat((first, second)), whole)
    for got, expected in zip(state, last, strict=True):
        torch.testing.assert_close(got, expected)


def test_windows_start_empty_in_each_batch() -> None:
    """What the published code does; with them a batch would go on from more than h and c."""
    model = build_model(model_settings("LSTM", 5, norm="atn", window=4), CHARACTERS)
    _, (state,) = model(torch.randint(50, (12, 3)))
    assert len(state) == 2


def test_one_hot_is_an_embedding_by_the_identity() -> None:
    model: Any = build_model(model_settings("ScoRNN", 6), CHARACTERS)
    x = torch.randint(50, (7, 2))
    layer = model.layers[0]
    expected = model.output(layer(torch.eye(50)[x])[0])
    torch.testing.assert_close(model(x)[0], expected)


def test_output_is_glorot_or_torchs_own() -> None:
    glorot: Any = build_model(model_settings("RNN", 400), COPYING).output
    bound = (6 / 409) ** 0.5
    assert 0.95 * bound < glorot.weight.abs().max() <= bound
    assert not glorot.bias.any()
    plain: Any = build_model(model_settings("RNN", 400, output_init="torch"), COPYING).output
    assert 0.95 / 20 < plain.weight.abs().max() <= 1 / 20


@pytest.mark.parametrize("output_init", ["glorot", "torch"])
def test_tied_weights_start_as_the_output_does(output_init: str) -> None:
    """Not as an embedding, whose first answers would be sure of themselves, and wrong."""
    settings = model_settings("torch.GRU", 400, embedding=400, tied=True, output_init=output_init)
    model: Any = build_model(settings, CHARACTERS)
    assert model.output.weight is model.embedding.weight
    bound = (6 / 450) ** 0.5 if output_init == "glorot" else 1 / 20
    assert 0.95 * bound < model.output.weight.abs().max() <= bound


def test_dropouts_are_where_they_belong() -> None:
    settings = model_settings(
        "ScoRNN", [4, 4], dropout=0.5, embedding=4, embedding_dropout=0.25, output_dropout=0.75
    )
    model: Any = build_model(settings, CHARACTERS)
    assert [model.dropout.p, model.embedding_dropout.p, model.output_dropout.p] == [0.5, 0.25, 0.75]
    stack: Any = build_model(model_settings("LSTM", 4, layers=2, dropout=0.5), COPYING)
    assert stack.layers[0].dropout
    x = torch.randint(50, (7, 2))
    assert not torch.equal(model(x)[0], model(x)[0])
    model.eval()
    torch.testing.assert_close(model(x)[0], model(x)[0])
