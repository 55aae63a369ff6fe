from typing import Any

import pytest
import torch
from torch import nn

import cayley
from cayley.lab.errors import RecipeError
from cayley.lab.models import LAYERS, build_model, count_parameters
from cayley.lab.recipes.reading import from_table
from cayley.lab.recipes.schema import ModelSettings
from cayley.lab.tasks import Task, make_task

TASKS: dict[str, Task] = {
    "mnist": make_task("mnist"),
    "adding": make_task("adding", T=200),
    "copying": make_task("copying", T=100),
    "timit": make_task("speech"),
    "characters": make_task("characters"),
    "cifar10": make_task("cifar10"),
    "cora": make_task("cora"),
}
IDENTITY = {"embedding": 1030, "input_matrix": "identity"}


def model_settings(name: str, hidden: Any, **others: Any) -> ModelSettings:
    return from_table(ModelSettings, {"name": name, "hidden": hidden, **others})


# printed, or computed by hand from the formulas of the documents
@pytest.mark.parametrize(
    ("task", "name", "hidden", "options", "count"),
    [
        ("mnist", "ScoRNN", 170, {}, 16415),
        ("mnist", "ScoRNN", 512, {}, 136970),
        ("mnist", "LSTM", 128, {}, 67850),
        ("mnist", "torch.LSTM", 256, {}, 266762),
        ("mnist", "URNN", 512, {}, 16394),
        ("mnist", "FullURNN", 116, {}, 16366),
        ("mnist", "ScuRNN", 116, {}, 16482),
        ("mnist", "RNN", 116, {}, 14858),
        ("mnist", "torch.RNN", 360, {}, 133930),
        ("mnist", "ORNN", 256, {"reflections": 32}, 11034),
        ("adding", "ScoRNN", 170, {}, 15046),
        ("adding", "LSTM", 60, {}, 15181),
        ("adding", "FullURNN", 120, {}, 15481),
        ("adding", "URNN", 950, {}, 15201),
        ("adding", "ScuRNN", 116, {}, 14617),
        ("adding", "ORNN", 128, {"reflections": 16}, 2569),
        ("adding", "ENRNN", (96, 64), {}, 15441),
        ("copying", "ScoRNN", 190, {}, 21764),
        ("copying", "ENRNN", (172, 20), {}, 22395),
        ("timit", "ScoRNN", 425, {}, 200304),
        ("timit", "LSTM", 158, {}, 202527),
        ("timit", "ENRNN", (374, 94), {"coupled": False}, 199928),
        ("characters", "LSTM", 350, {"embedding": 350}, 1016450),
        ("characters", "ENRNN", (310, 720), IDENTITY, 893575),
        ("characters", "ORNN", 512, {"reflections": 512, "trainable_h0": False}, 183090),
    ],
)
def test_count_is_that_of_the_documents(
    task: str, name: str, hidden: int, options: dict[str, Any], count: int
) -> None:
    with torch.device("meta"):
        model = build_model(model_settings(name, hidden, **options), TASKS[task])
    assert count_parameters(model) == count


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_answers_last_or_each_step(name: str) -> None:
    hidden = [4, 4] if name == "ENRNN" else 8
    settings = model_settings(name, hidden)
    for task, shape in ((TASKS["adding"].tiny(), (3, 1)), (TASKS["copying"].tiny(), (None, 3, 9))):
        batch = next(task.batches("train", 3))
        output, state = build_model(settings, task)(batch.input)
        assert output.shape == tuple(n or len(batch.input) for n in shape)
        assert len(state) == 1
        task.loss(output, batch).backward()


def test_the_input_matrix_stays_the_identity() -> None:
    settings = model_settings("ENRNN", [3, 2], embedding=5, input_matrix="identity")
    model: Any = build_model(settings, make_task("characters"))
    U = model.layers[0].weight_ih_l0
    torch.testing.assert_close(U.detach(), torch.eye(5))
    assert not U.requires_grad


def test_a_layer_of_the_users_own() -> None:
    model: Any = build_model(model_settings("torch.nn:GRU", 8), TASKS["mnist"])
    assert isinstance(model.layers[0], nn.GRU)
    options = {"recurrent": "exponential", "nonlinearity": "modrelu"}
    other: Any = build_model(model_settings("RNN", 8, **options), TASKS["mnist"])
    assert isinstance(other.layers[0], cayley.RNN)


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        ("mnist", {"name": "ScoRN", "hidden": 8}, "did you mean ScoRNN?"),
        ("mnist", {"name": "MLP", "hidden": 8}, "expected a network that reads sequences"),
        ("mnist", {"name": "GCN", "hidden": 8}, "got GCN, which reads graph"),
        (
            "mnist",
            {"name": "ScoRNN", "hidden": 8, "negativ_ones": 3},
            "did you mean model.negative_",
        ),
        ("mnist", {"name": "torch.LSTM", "hidden": 8, "hiden": 3}, "did you mean model.hidden"),
        ("mnist", {"name": "ScoRNN", "hidden": 8, "dropout": 0.5}, "use output_dropout"),
        ("mnist", {"name": "ScoRNN", "hidden": 8, "embedding": 5}, "the task has no tokens"),
        ("mnist", {"name": "ENRNN", "hidden": 8}, r"expected \[long, short\]"),
        ("mnist", {"name": "LSTM", "hidden": [8, 8], "layers": 2}, "expected 1 with a list"),
        ("characters", {"name": "RNN", "hidden": 8, "embedding_dropout": 0.5}, "without an embed"),
        ("cifar10", {"name": "MLP", "hidden": [8], "layers": 2}, "MLP has none: leave it out"),
        ("cora", {"name": "GCN", "hidden": 8, "tied": True}, "GCN has none: leave it out"),
        ("cora", {"name": "SAGE", "hidden": [8, 8]}, "expected one number for SAGE"),
        ("cora", {"name": "GCN", "hidden": 8, "cachd": True}, r"did you mean model.cached\?"),
        ("mnist", {"name": "RNN", "hidden": 8, "input_matrix": "identity"}, "expected a square"),
        (
            "characters",
            {"name": "RNN", "hidden": 8, "tied": True},
            "expected an embedding of size 8",
        ),
        ("mnist", {"name": "LSTM", "hidden": [8, 0]}, "model.hidden: expected sizes of at least 1"),
        ("mnist", {"name": "LSTM", "hidden": []}, "model.hidden: expected at least one size"),
        (
            "mnist",
            {"name": "ScoRNN", "hidden": 10**6},
            "model: expected a network that fits into the .* GiB",
        ),
        (
            "cifar10",
            {"name": "MLP", "hidden": [10**6] * 9},
            "model: expected a network that fits into",
        ),
        ("mnist", {"name": "RNN", "hidden": 8, "bias": "no"}, "model.bias: expected true or false"),
        ("mnist", {"name": "torch.LSTM", "hidden": 8, "bias": 3}, "model.bias: expected true or f"),
        (
            "mnist",
            {"name": "EURNN", "hidden": 8, "rotations": 10**20},
            "model.rotations: expected an integer from 0 to",
        ),
        ("mnist", {"name": "ScoRNN", "hidden": 8, "negative_ones": 0.5}, "model.negative_ones: ex"),
        ("cora", {"name": "GCN", "hidden": 8, "cached": "no"}, "model.cached: expected true or f"),
        ("cora", {"name": "GCN", "hidden": 8, "norm": "foo"}, "model.norm: expected '' or 'batch'"),
        ("cifar10", {"name": "MLP", "hidden": 8, "momentum": 2}, "model.momentum: expected a num"),
        ("cifar10", {"name": "MLP", "hidden": 8, "init_scale": -1}, "model.init_scale: expected a"),
    ],
)
def test_settings_that_make_no_network(task: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        build_model(from_table(ModelSettings, settings), TASKS[task])
