"""Runs whose networks learn side by side: each has the numbers that it has alone."""

import signal
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cayley.lab.errors import Interrupted, NotFinite, RecipeError
from cayley.lab.recipes.schema import Recipe, read_recipe
from cayley.lab.runs import Interrupts, RunResult, find_state, read_metrics, read_run
from cayley.lab.runs.machine import Machine
from cayley.lab.training import (
    Member,
    Quiet,
    RunSettings,
    build_task,
    initial_model,
    resume,
    train,
    train_together,
)
from cayley.lab.training.ensemble import Ensemble

SEEDS = (1, 2, 3)
SINGLE = RunSettings(Machine("cpu", "32-true", 1), tiny=True)
DOUBLE = RunSettings(Machine("cpu", "64-true", 1), tiny=True)
ADDING = {"name": "adding", "T": 20}
TEXT = {"name": "characters", "K": 8, "jitter": True}
THIRTY = {"batch": 4, "steps": 30, "clip_norm": 1.0, "log": 1}
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ScoRNN": (ADDING, {"name": "ScoRNN", "hidden": 8}),
    "NCGRU": (ADDING, {"name": "NCGRU", "hidden": 8}),
    "ENRNN": (ADDING, {"name": "ENRNN", "hidden": [6, 4]}),
    # a bias inside would be undone: its gradient is rounding, of which Adam makes steps
    "LSTM-batch": (
        ADDING,
        {"name": "LSTM", "hidden": 8, "norm": "batch", "bias_inside": False},
    ),
    "FullURNN": (ADDING, {"name": "FullURNN", "hidden": 8}),
    "ScuRNN": (ADDING, {"name": "ScuRNN", "hidden": 8}),
    # segments have other lengths for other seeds, and go on from the state before
    "text": (TEXT, {"name": "LSTM", "hidden": [7, 6], "norm": "atn", "window": 3, "embedding": 5}),
}


def recipe(kind: str = "ScoRNN", **changes: Any) -> Recipe:
    task, model = MODELS[kind]
    content = {
        "name": "mine",
        "task": task,
        "model": model,
        "optim": {"name": "Adam", "lr": 1e-2},
        "training": {"batch": 4, "steps": 10, "clip_norm": 1.0, "log": 1},
        "evaluation": {"every": 5},
    }
    if model["name"] != "LSTM":
        recurrent = "StiefelRMSprop" if kind == "FullURNN" else "RMSprop"
        content["optim"] |= {"recurrent": recurrent, "recurrent_lr": 1e-3}
    return read_recipe(content | changes)


def members(
    place: Path, settings: RunSettings = DOUBLE, recipes: Sequence[Recipe] | None = None
) -> list[Member]:
    recipes = [recipe()] * len(SEEDS) if recipes is None else recipes
    return [
        Member(one, place / f"{k}", seed, settings, Quiet())
        for k, (one, seed) in enumerate(zip(recipes, SEEDS, strict=True))
    ]


def curve(folder: Path) -> list[tuple[str, dict[str, float]]]:
    """The losses, rates and scores of a run by name, without events and times."""
    kept = ("step", "epoch", "loss", "lr", "scores", "train_loss")
    lines = []
    for line in read_metrics(folder):
        if line["kind"] != "event":
            values = flattened({key: line[key] for key in kept if line.get(key) is not None})
            lines.append((line["kind"], values))
    return lines


def flattened(tree: dict[str, Any], prefix: str = "") -> dict[str, float]:
    flat: dict[str, float] = {}
    for key, value in tree.items():
        flat |= (
            flattened(value, f"{prefix}{key}.")
            if isinstance(value, dict)
            else {f"{prefix}{key}": value}
        )
    return flat


def assert_same_run(one: Path, other: Path, tolerance: float) -> None:
    ours, theirs = curve(one), curve(other)
    assert [kind for kind, _ in ours] == [kind for kind, _ in theirs]
    for (_, mine), (_, yours) in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(yours, rel=tolerance, abs=tolerance)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("settings", [DOUBLE, SINGLE], ids=["64", "32"])
def test_each_has_the_numbers_that_it_has_alone(
    kind: str, settings: RunSettings, tmp_path: Path
) -> None:
    found = train_together(members(tmp_path, settings, [recipe(kind)] * 3))
    # rounding is no reason for another course where each network has the same calls of kernels
    exact = settings is SINGLE and kind in ("ScoRNN", "NCGRU", "ENRNN")
    tolerance = 0.0 if exact else 1e-8 if settings is DOUBLE else 1e-4
    for k, seed in enumerate(SEEDS):
        alone = tmp_path / f"alone{k}"
        result, own = train(recipe(kind), alone, seed=seed, settings=settings), found[k]
        assert isinstance(own, RunResult)
        assert (own.status, own.step, own.select) == (result.status, result.step, result.select)
        assert_same_run(tmp_path / f"{k}", alone, tolerance)
        names = {path.name for path in alone.iterdir()}
        assert {path.name for path in (tmp_path / f"{k}").iterdir()} == names
        ours, theirs = (
            torch.load(folder / "checkpoint.pt")["learner"] for folder in (tmp_path / f"{k}", alone)
        )
        torch.testing.assert_close(
            ours["model"], theirs["model"], rtol=100 * tolerance, atol=100 * tolerance
        )
        # no part of what belongs to all of them
        sizes = [(folder / "checkpoint.pt").stat().st_size for folder in (tmp_path / f"{k}", alone)]
        assert sizes[0] == sizes[1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize(
    ("kind", "graph"),
    [
        *((kind, False) for kind in ("ScoRNN", "NCGRU", "ENRNN", "LSTM-batch")),
        *((kind, True) for kind in ("ScoRNN", "NCGRU", "ENRNN")),
    ],
)
def test_on_a_gpu(kind: str, graph: bool, tmp_path: Path) -> None:
    compare_on_a_gpu(recipe(kind, training=THIRTY), graph, tmp_path)


# whose inverses by torch cannot be recorded, if there are several
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize(("kind", "n"), [("ScoRNN", 190), ("ScuRNN", 130)])
def test_large_matrices_in_a_graph(kind: str, n: int, tmp_path: Path) -> None:
    # at ten times these rates, the rounding of other kernels on a CPU grows to 1 % in ten steps
    rates = {"name": "Adam", "lr": 1e-3, "recurrent": "RMSprop", "recurrent_lr": 1e-4}
    one = recipe(kind, model={"name": kind, "hidden": n}, training=THIRTY, optim=rates)
    compare_on_a_gpu(one, True, tmp_path)


def compare_on_a_gpu(one: Recipe, graph: bool, tmp_path: Path) -> None:
    settings = RunSettings(Machine("cuda", "32-true", 1, graph), tiny=True)
    train_together(members(tmp_path, settings, [one] * 3))
    for k, seed in enumerate(SEEDS):
        train(one, tmp_path / f"alone{k}", seed=seed, settings=settings)
        assert_same_run(tmp_path / f"{k}", tmp_path / f"alone{k}", 1e-4)


def test_apart_as_in_a_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU records, with streams that do nothing: it equals joint passes."""
    stream = SimpleNamespace(wait_stream=lambda other: None, device_index=None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    train_together(members(tmp_path / "joint", DOUBLE, [recipe("text")] * 3))
    monkeypatch.setattr(Ensemble, "_update", Ensemble._update_apart)
    train_together(members(tmp_path / "apart", DOUBLE, [recipe("text")] * 3))
    for k in range(3):
        assert_same_run(tmp_path / "apart" / f"{k}", tmp_path / "joint" / f"{k}", 1e-8)


@pytest.mark.parametrize(("settings", "apart"), [(SINGLE, True), (DOUBLE, False)])
def test_without_kernels_they_pass_together(settings: RunSettings, apart: bool) -> None:
    one = recipe()
    model = initial_model(one, build_task(one.task, settings), 1, settings.machine)
    assert Ensemble(model).apart is apart


def test_rates_of_their_own(tmp_path: Path) -> None:
    recipes = [recipe(optim={"name": "Adam", "lr": lr}) for lr in (1e-2, 1e-3, 1e-4)]
    train_together(members(tmp_path, DOUBLE, recipes))
    for k, (one, seed) in enumerate(zip(recipes, SEEDS, strict=True)):
        train(one, tmp_path / f"alone{k}", seed=seed, settings=DOUBLE)
        assert_same_run(tmp_path / f"{k}", tmp_path / f"alone{k}", 1e-8)


def test_other_networks_form_groups_of_their_own(tmp_path: Path) -> None:
    recipes = [recipe("ScoRNN"), recipe("LSTM-batch"), recipe("ScoRNN")]
    train_together(members(tmp_path, DOUBLE, recipes))
    for k, (one, seed) in enumerate(zip(recipes, SEEDS, strict=True)):
        train(one, tmp_path / f"alone{k}", seed=seed, settings=DOUBLE)
        assert_same_run(tmp_path / f"{k}", tmp_path / f"alone{k}", 1e-8)


@pytest.mark.parametrize("name", ["loss", "score"])
def test_one_that_diverges_stops_alone(name: str, tmp_path: Path) -> None:
    training = {"batch": 4, "steps": 10, "log": 1 if name == "loss" else 10}
    good = recipe(training=training)
    bad = recipe(training=training, optim={"name": "SGD", "lr": 1e200})
    found = train_together(members(tmp_path, DOUBLE, [good, bad, good]))
    assert isinstance(found[1], NotFinite)
    assert not (tmp_path / "1" / "result.json").exists()
    assert [line["event"] for line in read_metrics(tmp_path / "1") if line["kind"] == "event"]
    for k in (0, 2):
        assert isinstance(found[k], RunResult)
        train(good, tmp_path / f"alone{k}", seed=SEEDS[k], settings=DOUBLE)
        assert_same_run(tmp_path / f"{k}", tmp_path / f"alone{k}", 1e-8)


class _Signal(Quiet):
    """Asks to stop at a step."""

    def step(self, step: int, epoch: float) -> None:
        if step == 6:
            signal.raise_signal(signal.SIGTERM)


def test_interrupted_they_go_on_together_and_alone(tmp_path: Path) -> None:
    before = members(tmp_path)
    asked = [
        Member(m.recipe, m.folder, m.seed, m.settings, _Signal() if k == 0 else m.reporter)
        for k, m in enumerate(before)
    ]
    with Interrupts() as interrupts, pytest.raises(Interrupted, match="stopped 3 runs") as error:
        train_together(asked, interrupts=interrupts)
    assert error.value.code == 128 + signal.SIGTERM
    assert all(torch.load(m.folder / "checkpoint.pt")["progress"]["step"] == 6 for m in before)
    resume(before[0].folder)
    finished = (before[0].folder / "result.json").read_bytes()
    found = train_together(before)
    # also of the one that went on alone
    assert {read_run(m.folder)[0].together for m in before} == {3}
    assert all(isinstance(result, RunResult) for result in found)
    assert (before[0].folder / "result.json").read_bytes() == finished
    for k, seed in enumerate(SEEDS):
        train(recipe(), tmp_path / f"alone{k}", seed=seed, settings=DOUBLE)
        assert_same_run(before[k].folder, tmp_path / f"alone{k}", 1e-8)


def test_how_many_share_their_time_is_recorded(tmp_path: Path) -> None:
    begun, *others = members(tmp_path)
    options: dict[str, Any] = {"seed": begun.seed, "settings": DOUBLE, "reporter": _Signal()}
    with Interrupts() as interrupts, pytest.raises(Interrupted):
        train(recipe(), begun.folder, interrupts=interrupts, **options)
    assert read_run(begun.folder)[0].timed_alone
    train_together([begun, *others])
    descriptions = [read_run(m.folder)[0] for m in (begun, *others)]
    assert [(one.together, one.timed_alone) for one in descriptions] == [(3, False)] * 3
    # a single one has its time for itself
    train_together([Member(recipe(), tmp_path / "single", 4, DOUBLE, Quiet())])
    assert read_run(tmp_path / "single")[0].timed_alone


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": {"name": "torch.LSTM", "hidden": 4}}, "not a recurrent network of cayley"),
        ({"model": {"name": "ScoRNN", "hidden": 4, "output_dropout": 0.5}}, "dropout"),
        ({"model": {"name": "LSTM", "hidden": 4, "layers": 2, "dropout": 0.5}}, "dropout"),
        ({"bnp": {"eps": 0.1}, "model": {"name": "LSTM", "hidden": 4}}, "BNP"),
    ],
)
def test_what_cannot_leaves_nothing_behind(
    changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    recipes = [recipe(), recipe(**changes), recipe()]
    with pytest.raises(RecipeError, match=why):
        train_together(members(tmp_path, DOUBLE, recipes))
    assert not [*tmp_path.iterdir()]


def test_half_precision_is_refused(tmp_path: Path) -> None:
    mixed = RunSettings(Machine("cpu", "bf16-mixed", 1), tiny=True)
    with pytest.raises(RecipeError, match="32-true or 64-true"):
        train_together(members(tmp_path, mixed))


def test_an_error_ends_all_runs_and_each_says_so(tmp_path: Path) -> None:
    class Failing(Quiet):
        def step(self, step: int, epoch: float) -> None:
            if step == 3:
                raise RuntimeError("a mistake")

    several = members(tmp_path)
    several[1] = replace(several[1], reporter=Failing())
    with pytest.raises(RuntimeError, match="a mistake"):
        train_together(several)
    assert {find_state(one.folder).message for one in several} == {"RuntimeError: a mistake"}
