import json
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from disk import full_disk

from cayley.lab.errors import Interrupted, NotFinite, RecipeError, RunError
from cayley.lab.recipes.schema import Recipe, read_recipe
from cayley.lab.runs import find_state, load_tensors, read_metrics
from cayley.lab.runs.interrupts import Interrupts
from cayley.lab.runs.machine import Machine
from cayley.lab.training import RunSettings, evaluate, loop, resume, train
from cayley.lab.training.reporters import Quiet

TINY = RunSettings(Machine("cpu", "64-true", 1), tiny=True)


def recipe(**changes: Any) -> Recipe:
    content: dict[str, Any] = {
        "name": "a",
        "task": {"name": "adding"},
        "model": {"name": "ScoRNN", "hidden": 6},
        "optim": {"name": "Adam", "lr": 1e-2},
        "training": {"batch": 8, "epochs": 4},
    }
    return read_recipe(content | changes)


class Watcher(Quiet):
    """Does something after a step."""

    def __init__(self, step: int, act: Any) -> None:
        self.when, self.act = step, act

    def step(self, step: int, epoch: float) -> None:
        if step == self.when:
            self.act()


class Counter(Quiet):
    """Notes how far evaluations are."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, int]] = []

    def evaluate(self, split: str, batch: int, batches: int) -> None:
        self.seen.append((split, batch, batches))


def events(folder: Path) -> list[str]:
    return [record["event"] for record in read_metrics(folder) if record["kind"] == "event"]


def numbers(folder: Path) -> list[Any]:
    """The records, without times and events."""
    return [
        {key: value for key, value in record.items() if "seconds" not in key}
        for record in read_metrics(folder)
        if record["kind"] != "event"
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_it_stops_after_the_step_and_goes_on_later(
    number: signal.Signals, tmp_path: Path
) -> None:
    train(recipe(), tmp_path / "whole", settings=TINY)
    watcher = Watcher(7, lambda: signal.raise_signal(number))
    with Interrupts() as interrupts, pytest.raises(Interrupted, match="stopped after step 7") as e:
        train(recipe(), tmp_path / "run", settings=TINY, reporter=watcher, interrupts=interrupts)
    assert e.value.code == 128 + number
    assert load_tensors(tmp_path / "run", "checkpoint.pt")["progress"]["step"] == 7
    assert not (tmp_path / "run" / "result.json").exists()
    resume(tmp_path / "run")
    assert numbers(tmp_path / "run") == numbers(tmp_path / "whole")
    assert events(tmp_path / "run") == ["interrupted", "resumed"]


def test_every_batch_of_an_evaluation_is_shown(tmp_path: Path) -> None:
    counter = Counter()
    changes = {"training": {"batch": 8, "steps": 1}, "evaluation": {"start": False, "batch": 4}}
    train(recipe(**changes), tmp_path / "run", settings=TINY, reporter=counter)
    # the tiny task validates and tests with ten examples
    expected = [(split, batch, 3) for split in ("valid", "test") for batch in range(3)]
    assert counter.seen == expected


def test_a_long_evaluation_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "LONG_SECONDS", 0.0)
    train(recipe(), tmp_path / "whole", settings=TINY)
    # the fifth step ends an epoch: an evaluation follows
    watcher = Watcher(5, lambda: signal.raise_signal(signal.SIGINT))
    with Interrupts() as interrupts, pytest.raises(Interrupted, match="stopped after step 5"):
        train(recipe(), tmp_path / "run", settings=TINY, reporter=watcher, interrupts=interrupts)
    progress = load_tensors(tmp_path / "run", "checkpoint.pt")["progress"]
    assert (progress["step"], progress["evaluated"]) == (5, 0)
    assert events(tmp_path / "run") == ["interrupted"]
    resume(tmp_path / "run")
    assert numbers(tmp_path / "run") == numbers(tmp_path / "whole")


def test_a_loss_that_is_not_finite_is_named_and_the_checkpoint_kept(tmp_path: Path) -> None:
    wild = recipe(optim={"name": "SGD", "lr": 1e200}, training={"batch": 8, "steps": 20, "log": 20})
    with pytest.raises(NotFinite, match=r"the loss of step \d is (nan|inf); the last good") as e:
        train(wild, tmp_path / "run", settings=TINY)
    assert e.value.code == 3
    state = load_tensors(tmp_path / "run", "checkpoint.pt")
    assert state["progress"]["step"] == 0
    assert all(x.isfinite().all() for x in state["learner"]["model"].values())
    assert events(tmp_path / "run") == ["not finite"]
    assert not (tmp_path / "run" / "result.json").exists()
    with pytest.raises(NotFinite):
        resume(tmp_path / "run")


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    """The last step breaks them, no loss tells."""
    wild = recipe(optim={"name": "SGD", "lr": 1e308}, training={"batch": 8, "steps": 1})
    with pytest.raises(NotFinite, match=r"(is|are) .* after step 1;"):
        train(wild, tmp_path / "run", settings=TINY)
    assert load_tensors(tmp_path / "run", "checkpoint.pt")["progress"]["step"] == 0


def test_training_stops_early(tmp_path: Path) -> None:
    still = recipe(
        optim={"name": "SGD", "lr": 0.0}, training={"batch": 8, "epochs": 50, "patience": 3}
    )
    result = train(still, tmp_path / "run", settings=TINY)
    assert (result.status, result.epoch) == ("stopped early", 3.0)
    assert result.best["valid"].step == 0
    assert events(tmp_path / "run") == ["stopped early"]


@pytest.mark.parametrize(
    ("training", "evaluation", "steps"),
    [
        ({"epochs": 2}, {}, [0, 5, 10]),
        ({"epochs": 2}, {"start": False}, [5, 10]),
        ({"steps": 7}, {"every": 3}, [0, 3, 6, 7]),
        ({"steps": 6}, {"every": 3}, [0, 3, 6]),
        ({"steps": 3}, {"every": "epoch"}, [0, 3]),
    ],
)
def test_evaluations_are_on_time(
    training: dict[str, Any], evaluation: dict[str, Any], steps: list[int], tmp_path: Path
) -> None:
    settings = recipe(training={"batch": 8} | training, evaluation=evaluation)
    train(settings, tmp_path, settings=TINY)
    assert [r["step"] for r in read_metrics(tmp_path) if r["kind"] == "eval"] == steps


def test_splits_without_examples_are_left_out(tmp_path: Path) -> None:
    task = {"name": "adding", "T": 10, "train": 16, "valid": 0, "test": 8}
    settings = RunSettings(Machine("cpu", "64-true", 1))
    chosen = recipe(task=task, evaluation={"select": "last"})
    assert set(train(chosen, tmp_path / "a", settings=settings).selected) == {"test"}
    with pytest.raises(RecipeError, match="expected examples in the split valid, got none"):
        evaluate(tmp_path / "a", "valid", weights="last")
    with pytest.raises(RecipeError, match="expected examples in the split 'valid'"):
        train(recipe(task=task), tmp_path / "b", settings=settings)
    assert not (tmp_path / "b").exists()


def test_the_metric_that_decides(tmp_path: Path) -> None:
    graph = {
        "task": {"name": "cora"},
        "model": {"name": "GCN", "hidden": 4, "layers": 2},
        "training": {"batch": 1, "epochs": 3},
    }
    settings = recipe(**graph, evaluation={"metric": "cross_entropy"})
    result = train(settings, tmp_path / "a", settings=TINY)
    assert json.loads((tmp_path / "a" / "run.json").read_text())["metric"]["better"] == "lower"
    assert result.best["valid"].value < 3
    with pytest.raises(RecipeError, match="expected one of accuracy, cross_entropy, got 'mse'"):
        train(recipe(**graph, evaluation={"metric": "mse"}), tmp_path / "b", settings=TINY)


def test_a_disk_that_fills_up_keeps_the_run(tmp_path: Path) -> None:
    train(recipe(), tmp_path / "whole", settings=TINY)
    stack = ExitStack()
    watcher = Watcher(7, lambda: stack.enter_context(full_disk()))
    with stack, pytest.raises(RunError, match="File too large"):
        train(recipe(), tmp_path / "run", settings=TINY, reporter=watcher)
    resume(tmp_path / "run")
    assert numbers(tmp_path / "run") == numbers(tmp_path / "whole")


def test_dtype_and_device_are_the_machines(tmp_path: Path) -> None:
    train(recipe(), tmp_path, settings=RunSettings(Machine("cpu", "32-true", 1), tiny=True))
    weights = load_tensors(tmp_path, "checkpoint.pt")["learner"]["model"]
    assert {x.dtype for x in weights.values() if x.is_floating_point()} == {torch.float32}


def test_bfloat16_keeps_float32_weights(tmp_path: Path) -> None:
    result = train(
        recipe(), tmp_path, settings=RunSettings(Machine("cpu", "bf16-mixed", 1), tiny=True)
    )
    assert result.status == "done"
    weights = load_tensors(tmp_path, "checkpoint.pt")["learner"]["model"]
    assert {x.dtype for x in weights.values() if x.is_floating_point()} == {torch.float32}


def fail() -> None:
    raise RuntimeError("no more memory\nhere is where")


def test_an_error_is_the_last_event_of_its_run(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no more memory"):
        train(recipe(), tmp_path, settings=TINY, reporter=Watcher(5, fail))
    found = find_state(tmp_path)
    assert (found.state, found.step) == ("stopped", 5)
    assert found.message == "RuntimeError: no more memory"
    assert resume(tmp_path).status == "done"
