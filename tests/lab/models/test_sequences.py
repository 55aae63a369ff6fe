import copy
from typing import Any

import pytest
import torch

from cayley.lab.errors import RecipeError
from cayley.lab.models import build_model
from cayley.lab.models.sequences import LockedDropout
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


@pytest.mark.filterwarnings("ignore:.*it has no normalisation for an Elman recurrence")
def test_windows_of_a_plain_network_start_empty_too() -> None:
    model: Any = build_model(model_settings("RNN", 5, norm="atn", window=4), CHARACTERS)
    x = torch.randint(50, (12, 3))
    _, (h,) = model(x)
    assert h.shape == (1, 3, 5)
    expected, _ = model.layers[0](torch.eye(50)[x], h)
    torch.testing.assert_close(model(x, (h,))[0], model.output(expected))


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


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("init", ["glorot", 0.1, "torch"])
def test_an_embedding_starts_as_it_is_told(tied: bool, init: str | float) -> None:
    """Tied or not; the bias is the output's."""
    settings = model_settings("torch.GRU", 400, embedding=400, tied=tied, embedding_init=init)
    model: Any = build_model(settings, CHARACTERS)
    weight = model.embedding.weight
    assert (model.output.weight is weight) == tied
    assert not model.output.bias.any()
    if init == "torch":
        assert 0.97 < weight.std() < 1.03
    else:
        bound = (6 / 450) ** 0.5 if init == "glorot" else 0.1
        assert 0.95 * bound < weight.abs().max() <= bound
    if not tied:
        assert 0.95 * (6 / 450) ** 0.5 < model.output.weight.abs().max() <= (6 / 450) ** 0.5


def test_an_output_within_a_bound() -> None:
    output: Any = build_model(model_settings("RNN", 400, output_init=0.1), COPYING).output
    assert 0.095 < output.weight.abs().max() <= 0.1
    assert not output.bias.any()


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


def test_locked_dropout_has_one_mask_for_all_steps() -> None:
    locked = LockedDropout(0.4)
    x = torch.randn(50, 30, 20)
    y = locked(x)
    mask = (y / x).abs()
    assert torch.equal(mask.round(decimals=6), mask[:1].expand_as(mask).round(decimals=6))
    assert sorted(mask[0].round(decimals=6).unique().tolist()) == [0.0, round(1 / 0.6, 6)]
    # 600 draws
    assert abs((mask[0] == 0).double().mean() - 0.4) < 4 * (0.4 * 0.6 / 600) ** 0.5
    assert torch.equal(locked.eval()(x), x)
    assert LockedDropout(0.0)(x) is x


@pytest.mark.parametrize("hidden", [{"hidden": 8, "layers": 3}, {"hidden": [8, 8, 8]}])
def test_locked_dropouts_are_in_all_three_places(hidden: dict[str, Any]) -> None:
    """Also between the layers of a stack, which then are modules of their own."""
    content = {
        "name": "LSTM",
        "embedding": 8,
        "dropout": 0.5,
        "embedding_dropout": 0.5,
        "output_dropout": 0.5,
        "locked": True,
    }
    model: Any = build_model(from_table(ModelSettings, content | hidden), CHARACTERS)
    assert len(model.layers) == 3
    seen: list[torch.Tensor] = []
    for module in (*model.layers, model.output):
        module.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    model(torch.randint(50, (30, 4)))
    assert len(seen) == 4
    for x in seen:
        zero = x == 0
        assert zero.any()
        assert not zero.all()
        assert torch.equal(zero, zero[:1].expand_as(zero))


def test_the_last_step_alone_has_a_locked_dropout_too() -> None:
    settings = model_settings("LSTM", 40, output_dropout=0.5, locked=True)
    model: Any = build_model(settings, make_task("adding", T=10))
    seen: list[torch.Tensor] = []
    model.output.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    assert model(torch.rand(10, 3, 2))[0].shape == (3, 1)
    zero = seen[0][0] == 0
    # each sequence has a mask of its own
    assert not torch.equal(zero[0], zero[1])


def test_word_dropout_takes_whole_words() -> None:
    settings = model_settings("RNN", 6, embedding=4, word_dropout=0.3)
    model: Any = build_model(settings, CHARACTERS)
    x = torch.arange(50).repeat(3).view(30, 5)
    got = model.embed(model.embedding, x).flatten(0, 1)
    plain = model.embedding(x).flatten(0, 1)
    factor = (got / plain).abs().round(decimals=6)
    # all features of all places of a word share what happens to it
    assert torch.equal(factor[:50], factor[50:100])
    assert torch.equal(factor, factor[:, :1].expand_as(factor))
    assert sorted(factor.unique().tolist()) == [0.0, round(1 / 0.7, 6)]
    assert torch.equal(model.eval().embed(model.embedding, x).flatten(0, 1), plain)


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "torch.LSTM", "hidden": 7, "layers": 2},
        {"name": "LSTM", "hidden": 7, "norm": "layer"},
        {"name": "NCGRU", "hidden": 7, "orthogonal": [], "nonlinearity": "tanh"},
    ],
)
def test_weight_dropout_is_that_of_the_recurrent_matrix(settings: dict[str, Any]) -> None:
    """The layer with entries of its matrix zero and the rest greater gives the same."""
    content = settings | {"weight_dropout": 0.4}
    model: Any = build_model(from_table(ModelSettings, content), CHARACTERS)
    x = torch.randint(50, (9, 3))
    torch.manual_seed(1)
    got = model(x)[0]
    torch.manual_seed(1)
    dropped = copy.deepcopy(model).eval()
    layer = dropped.layers[0]
    names = [name for name, _ in layer.named_parameters() if name.startswith("weight_hh")]
    assert names == [f"weight_hh_l{k}" for k in range(settings.get("layers", 1))]
    with torch.no_grad():
        for name in names:
            W = getattr(layer, name)
            zero = W == 0
            W.copy_(torch.nn.functional.dropout(W, 0.4))
            # a normalised layer starts with the identity
            assert abs((W[~zero] == 0).double().mean() - 0.4) < 0.25
    torch.testing.assert_close(got, dropped(x)[0])
    got.sum().backward()
    assert all(getattr(model.layers[0], name).grad.any() for name in names)
    # every batch has a mask of its own, and evaluation none
    assert not torch.equal(model(x)[0], got)
    model.eval()
    torch.testing.assert_close(model(x)[0], model(x)[0], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "ScoRNN", "hidden": 6, "weight_dropout": 0.5}, "recurrent matrix of ScoRNN is"),
        ({"name": "NCGRU", "hidden": 6, "weight_dropout": 0.5}, "recurrent matrix of NCGRU is"),
        ({"name": "LSTM", "hidden": 6, "word_dropout": 0.5}, "word_dropout: expected 0 without"),
    ],
)
def test_dropouts_that_make_no_sense(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        build_model(from_table(ModelSettings, settings), CHARACTERS)
