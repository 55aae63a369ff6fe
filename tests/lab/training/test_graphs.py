import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import cayley
from cayley.lab.errors import RecipeError
from cayley.lab.recipes import find_recipe
from cayley.lab.runs import Machine, RunResult, read_metrics, read_run
from cayley.lab.training import RunSettings, build_task, initial_model, resume, train
from cayley.lab.training.graphs import graph_refusal, set_capturable, unchanged
from cayley.lab.training.learner import Learner
from cayley.lab.training.reporters import headlines

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
# one of each recurrence and of each optimizer, with states that are carried on or not
RECIPES = [
    "scornn/adding-200",
    "scornn/mnist-170",
    "scurnn/adding-200",
    "full-urnn/adding-200",
    "urnn/copying-1000",
    "ornn/adding-200",
    "enrnn/adding-750",
    "enrnn/adding-750-0-160",
    "nc-gru/words",
    "lstm/adding-200",
    "ln-lstm/copying-100",
    "atn-lstm/copying-100",
    "lstm/characters-350",
]
SMALL = {
    # decomposed at every step, and followed
    "enrnn/adding-750": ["model.hidden=[12,16]", "model.negative_ones=4"],
    "enrnn/adding-750-0-160": ["model.hidden=[0,100]"],
    "nc-gru/words": [
        *("model.hidden=[12,16,12]", "model.embedding=12", "model.negative_ones=4"),
        "optim.lr_by_length=false",
    ],
}


def refusal(name: str, *changes: str) -> str | None:
    recipe = find_recipe(name).recipe(overrides=[*changes])
    settings = RunSettings(Machine("cpu"), tiny=True)
    model = initial_model(recipe, build_task(recipe.task, settings), 1, settings.machine)
    return graph_refusal(recipe, model, torch.optim.Adam(model.parameters()))


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("bn-lstm/adding-400", (), "over the batch"),
        ("bnp-lstm/adding-400", (), "BNP"),
        ("nc-gru/words", ("optim.lr_by_length=true",), "rates"),
        ("scornn/adding-200", ("optim.rebase=auto",), "D is chosen again"),
        ("scornn/adding-200", ("optim.schedule.name=StepLR", "optim.schedule.every=step"), "rates"),
    ],
)
def test_reasons_against_a_graph(name: str, changes: tuple[str, ...], reason: str) -> None:
    assert reason in (refusal(name, *changes) or "")


def test_windows_over_the_batch_are_a_reason() -> None:
    recipe = find_recipe("atn-lstm/copying-100").recipe()
    for over in ("layer", "batch"):
        model = cayley.LSTM(2, 8, norm="atn", window=3, over=over)
        found = graph_refusal(recipe, model, torch.optim.Adam(model.parameters()))
        assert (found is None) is (over == "layer")


def test_an_optimizer_that_counts_on_the_host_is_a_reason() -> None:
    recipe, model = find_recipe("scornn/adding-200").recipe(), cayley.ScoRNN(2, 8)
    assert "Adagrad" in (
        graph_refusal(recipe, model, torch.optim.Adagrad(model.parameters())) or ""
    )
    both = cayley.optim.Optimizers(
        torch.optim.Adam([*model.parameters()][:1]),
        cayley.optim.RMSpropTF([*model.parameters()][1:]),
    )
    assert graph_refusal(recipe, model, both) is None


def test_the_steps_that_were_taken_count() -> None:
    p = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([p], lr=0.5)
    p.sum().backward()
    optimizer.step()
    set_capturable(optimizer, True)
    assert optimizer.param_groups[0]["capturable"]
    assert optimizer.state[p]["step"] == 1
    assert optimizer.state[p]["step"].device == p.device


@pytest.mark.parametrize("name", ["scornn/adding-200", "atn-lstm/adding-100"])
def test_a_run_with_graphs_can_go_on_without(name: str) -> None:
    recipe = find_recipe(name).recipe(tiny=True)
    settings = RunSettings(Machine("cpu"), tiny=True)
    task = build_task(recipe.task, settings)
    one, other = (
        Learner(recipe, task, initial_model(recipe, task, 1, settings.machine), settings.machine)
        for _ in range(2)
    )
    batches = task.batches("train", recipe.training.batch, epochs=None, dtype=torch.float32)
    first, second = itertools.islice(batches, 2)
    one.learn(first)
    set_capturable(one.optimizer, True)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    set_capturable(one.optimizer, False)
    assert one.learn(second) == other.learn(second)
    for p, q in zip(other.model.parameters(), one.model.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("name", ["lstm/adding-200", "ln-lstm/copying-100", "scornn/adding-200"])
def test_a_capturable_optimizer_has_taken_no_step(name: str) -> None:
    recipe = find_recipe(name).recipe(tiny=True)
    settings = RunSettings(Machine("cpu"), tiny=True)
    task = build_task(recipe.task, settings)
    one = Learner(recipe, task, initial_model(recipe, task, 1, settings.machine), settings.machine)
    set_capturable(one.optimizer, True)
    assert one.memory() is None


def test_sgd_without_momentum_has_nothing_to_make_in_a_first_step() -> None:
    recipe = find_recipe("lstm/copying-1000-sgd").recipe(tiny=True)
    settings = RunSettings(Machine("cpu"), tiny=True)
    task = build_task(recipe.task, settings)
    one = Learner(recipe, task, initial_model(recipe, task, 1, settings.machine), settings.machine)
    assert one.memory() is not None


def test_steps_that_are_undone_leave_no_trace() -> None:
    recipe = find_recipe("lstm/adding-200").recipe(tiny=True)
    settings = RunSettings(Machine("cpu"), tiny=True)
    task = build_task(recipe.task, settings)
    one, other = (
        Learner(recipe, task, initial_model(recipe, task, 1, settings.machine), settings.machine)
        for _ in range(2)
    )
    assert one.memory() is None
    batches = task.batches("train", recipe.training.batch, epochs=None, dtype=torch.float32)
    for step, batch in zip(range(4), batches, strict=False):
        if step:
            memory = one.memory()
            assert memory is not None
            with unchanged(memory):
                one.learn(batch)
                torch.rand(3)
        random = torch.get_rng_state()
        assert one.learn(batch) == other.learn(batch)
        assert torch.equal(random, torch.get_rng_state())


def test_a_graph_without_a_gpu_is_refused_before_there_is_a_folder(tmp_path: Path) -> None:
    recipe = find_recipe("quickstart").recipe()
    settings = RunSettings(Machine("cpu", graph=True), tiny=True)
    with pytest.raises(RecipeError, match=r"--graph: expected steps .* the device is not a GPU"):
        train(recipe, tmp_path / "run", settings=settings)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("graph", [None, False])
def test_without_a_gpu_nothing_is_said_of_graphs(graph: bool | None, tmp_path: Path) -> None:
    recipe = find_recipe("quickstart").recipe(tiny=True)
    settings = RunSettings(Machine("cpu", graph=graph), tiny=True)
    train(recipe, tmp_path / "run", settings=settings)
    machine = read_run(tmp_path / "run")[0].machine
    assert (machine.graph, machine.no_graph) == (False, "")


@on_gpu
def test_graphs_are_taken_where_they_can_be(tmp_path: Path) -> None:
    for name, reason in (("enrnn/adding-750", ""), ("bn-lstm/adding-400", "over the batch")):
        recipe = find_recipe(name).recipe(tiny=True)
        settings = RunSettings(Machine("cuda", graph=None), tiny=True)
        train(recipe, tmp_path / recipe.model.name, settings=settings)
        description, _ = read_run(tmp_path / recipe.model.name)
        assert description.machine.graph is not bool(reason)
        assert reason in description.machine.no_graph
        assert ("no CUDA graphs" in headlines(description, 0)[0]) is bool(reason)


def learner(name: str, graph: bool, *changes: str) -> tuple[Learner, Any]:
    recipe = find_recipe(name).recipe(overrides=[*SMALL.get(name, ()), *changes], tiny=True)
    settings = RunSettings(Machine("cuda", graph=graph), tiny=True)
    task = build_task(recipe.task, settings)
    model = initial_model(recipe, task, 1, settings.machine)
    one = Learner(recipe, task, model, settings.machine)
    if not graph:
        # which rounds differently
        set_capturable(one.optimizer, True)
    place, dtype = one.engine.device, settings.machine.dtype
    B = recipe.training.batch
    batches = task.batches("train", B, epochs=None, device=place, dtype=dtype)
    return one, batches


@on_gpu
@pytest.mark.parametrize("name", RECIPES)
def test_graphs_take_the_same_steps(name: str) -> None:
    one, other = learner(name, True), learner(name, False)
    for step, (batch, same) in enumerate(zip(one[1], other[1], strict=False)):
        # both draw from the generator of the device, for dropout
        torch.manual_seed(step)
        loss = one[0].learn(batch)
        torch.manual_seed(step)
        torch.testing.assert_close(loss, other[0].learn(same), rtol=1e-5, atol=1e-7)
        if step == 12:
            break
    assert one[0].graphs is not None
    assert one[0].graphs.graphs
    for p, q in zip(one[0].model.parameters(), other[0].model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


@on_gpu
def test_another_rate_is_recorded_anew() -> None:
    losses = []
    for graph in (True, False):
        one, batches = learner("lstm/adding-200", graph)
        for step, batch in zip(range(12), batches, strict=False):
            if step == 8:
                for group in one.optimizer.param_groups:
                    group["lr"] *= 10
            losses.append(float(one.learn(batch)))
    assert losses[:12] == pytest.approx(losses[12:], rel=1e-5)


@on_gpu
def test_a_run_with_graphs_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    # Adam counts steps in it, and for graphs rounds a counter that it loads to float32
    torch.set_default_dtype(torch.float32)
    settings = RunSettings(Machine("cuda", graph=True), tiny=True)

    def run(name: str, steps: int) -> RunResult:
        changes = [f"training.steps={steps}", "evaluation.every=5", "training.log=1"]
        recipe = find_recipe("scornn/adding-200").recipe(overrides=changes, tiny=True)
        return train(recipe, tmp_path / name, settings=settings)

    whole = run("whole", 20)
    assert read_run(tmp_path / "whole")[0].machine.graph
    run("parts", 10)
    parts = resume(tmp_path / "parts", extend=10)
    losses = [
        [record["loss"] for record in read_metrics(tmp_path / name) if "loss" in record]
        for name in ("whole", "parts")
    ]
    assert losses[0] == losses[1]
    assert parts.last == whole.last
