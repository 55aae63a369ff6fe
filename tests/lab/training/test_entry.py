import json
import math
import shutil
import sys
import wave
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import start
from torch import Tensor

from cayley.lab.errors import DataError, RecipeError, RunError
from cayley.lab.recipes import find_recipe
from cayley.lab.recipes.schema import Recipe, read_recipe
from cayley.lab.report import read_runs
from cayley.lab.runs import load_tensors, read_metrics, read_result, read_run
from cayley.lab.runs.machine import Machine
from cayley.lab.tasks.metrics import mean_squared_error
from cayley.lab.tasks.synthetic import Adding
from cayley.lab.training import RunSettings, evaluate, resume, run_folder, train

TINY = RunSettings(Machine("cpu", "64-true", 1), tiny=True)
ADDING = {
    "name": "adding",
    "task": {"name": "adding"},
    "model": {"name": "ENRNN", "hidden": [5, 4]},
    "optim": {"name": "Adam", "lr": 1e-2, "recurrent": "RMSpropTF", "recurrent_lr": 1e-3},
    "training": {"batch": 16, "epochs": 12},
}
CHARACTERS = {
    "name": "characters",
    "task": {"name": "characters", "K": 8, "jitter": True},
    "model": {
        "name": "NCGRU",
        "hidden": [7, 6],
        "embedding": 5,
        "dropout": 0.25,
        "output_dropout": 0.25,
    },
    "optim": {
        "name": "Adam",
        "lr": 1e-2,
        "schedule": {"name": "MultiStepLR", "every": "step", "milestones": [9], "gamma": 0.5},
    },
    "training": {"batch": 4, "epochs": 3, "clip_norm": 0.5, "log": 2},
    "evaluation": {"every": 7},
}
GRAPH = {
    "name": "graph",
    "task": {"name": "cora"},
    "model": {
        "name": "GCN",
        "hidden": 8,
        "layers": 2,
        "dropout": 0.5,
        "norm": "batch",
        "sites": "010",
    },
    "optim": {"name": "SGD", "lr": 0.1, "options": {"momentum": 0.9}},
    "bnp": {"eps": 0.1, "momentum": 0.9},
    "training": {"batch": 1, "epochs": 15},
}
SPEECH = ADDING | {
    "task": {"name": "speech"},
    "model": {"name": "ScoRNN", "hidden": 6},
    "training": {"batch": 3, "steps": 2},
    "evaluation": {"audio": True},
}


@pytest.mark.slow
def test_killed_at_random_moments_the_numbers_are_the_same(tmp_path: Path) -> None:
    script = Path(__file__).with_name("killed.py")
    process = start(tmp_path, str(script), "main", tmp_path, [ADDING, CHARACTERS, GRAPH])
    process.join()
    assert process.exitcode == 0, (tmp_path / "err").read_text()
    reports = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert len(reports) == 3
    for report in reports:
        assert report["same"], report
        assert report["kills"] > 0, report


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return read_recipe(ADDING | {"training": {"batch": 16, "steps": 7, "log": 2}})


def test_a_run_leaves_what_it_should(recipe: Recipe, tmp_path: Path) -> None:
    folder = run_folder(tmp_path, recipe, 3)
    result = train(recipe, folder, seed=3, settings=TINY)
    assert {path.name for path in folder.iterdir()} == {
        "run.json",
        "recipe.toml",
        "metrics.jsonl",
        "checkpoint.pt",
        "best-valid.pt",
        "best-test.pt",
        "result.json",
        "lock",
    }
    description, again = read_run(folder)
    assert again == recipe
    assert (description.seed, description.steps, description.tiny) == (3, 7, True)
    assert description.baseline["test"] == {"mse": 1 / 6}
    assert description.machine.precision == "64-true"
    assert description.versions["torch"] == torch.__version__
    records = list(read_metrics(folder))
    steps = [(record["kind"], record["step"]) for record in records]
    # three batches an epoch: of 16, 16 and 8
    expected = [("eval", 0), ("train", 2), ("eval", 3), ("train", 4), ("train", 6), ("eval", 6)]
    assert steps == [*expected, ("eval", 7)]
    assert records[0]["train_loss"] is None
    assert records[1]["lr"] == {"rest": 1e-2, "recurrent": 1e-3}
    assert result == read_result(folder)
    written = json.loads((folder / "result.json").read_text())
    assert written.pop("seal")["run"] == description.id
    assert json.loads(json.dumps(result.to_json())) == written
    assert (result.status, result.step, result.epoch) == ("done", 7, 2 + 1 / 3)
    assert result.last == records[-1]["scores"]
    values = [r["scores"]["valid"]["mse"] for r in records if r["kind"] == "eval"]
    assert result.best["valid"].value == min(values)
    assert result.selected["test"].chosen_by == "valid"


def test_losses_are_means_of_what_was_trained(recipe: Recipe, tmp_path: Path) -> None:
    """A record every step gives the numbers that are averaged otherwise."""
    each = read_recipe(ADDING | {"training": {"batch": 16, "steps": 7, "log": 1}})
    train(recipe, tmp_path / "two", settings=TINY)
    train(each, tmp_path / "one", settings=TINY)
    losses = [r["loss"] for r in read_metrics(tmp_path / "one") if r["kind"] == "train"]
    records = list(read_metrics(tmp_path / "two"))
    means = [r["loss"] for r in records if r["kind"] == "train"]
    assert means == [(a + b) / 2 for a, b in zip(losses[0:6:2], losses[1:6:2], strict=True)]
    means = [r["train_loss"] for r in records if r["kind"] == "eval"][1:]
    expected = [sum(losses[:3]) / 3, sum(losses[3:6]) / 3, losses[6]]
    assert means == pytest.approx(expected, rel=1e-15)
    assert read_result(tmp_path / "two").train_loss_best == min(means)


def test_evaluate_gives_the_numbers_of_the_run(recipe: Recipe, tmp_path: Path) -> None:
    result = train(recipe, tmp_path / "run", settings=TINY)
    for split in ("valid", "test"):
        scores = evaluate(tmp_path / "run", split)
        assert scores == result.selected[split].scores
    assert evaluate(tmp_path / "run", "test", weights="last") == result.last["test"]
    best = evaluate(tmp_path / "run", "test", weights="test")
    assert best["mse"] == result.best["test"].value
    with pytest.raises(RecipeError, match="expected a speech task"):
        evaluate(tmp_path / "run", "test", audio=True)


def test_each_split_has_the_numbers_of_its_own_best(tmp_path: Path) -> None:
    content = ADDING | {
        "training": {"batch": 16, "steps": 30},
        "evaluation": {"every": 3, "splits": ["train", "valid"], "select": "each"},
    }
    result = train(read_recipe(content), tmp_path, settings=TINY)
    steps = {selected.step for selected in result.selected.values()}
    assert len(steps) == 2, "choose settings with which the splits choose differently"
    for split in ("train", "valid"):
        assert evaluate(tmp_path, split) == result.selected[split].scores
    # a split that the run did not look at goes by validation, and so did training once
    assert evaluate(tmp_path, "test") == evaluate(tmp_path, "test", weights="valid")
    (tmp_path / "best-train.pt").unlink()
    assert evaluate(tmp_path, "train") == evaluate(tmp_path, "train", weights="valid")


def test_seeds_differ_and_repeat(recipe: Recipe, tmp_path: Path) -> None:
    a, b, c = (
        train(recipe, tmp_path / name, seed=seed, settings=TINY).last
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert a == b != c


def test_a_run_is_not_overwritten_and_a_finished_one_not_repeated(
    recipe: Recipe, tmp_path: Path
) -> None:
    result = train(recipe, tmp_path / "run", settings=TINY)
    with pytest.raises(RunError, match="continue with cayley resume"):
        train(recipe, tmp_path / "run", settings=TINY)
    assert resume(tmp_path / "run") == result


def test_a_checkpoint_of_another_run_is_named_and_without_it_the_run_starts_over(
    recipe: Recipe, tmp_path: Path
) -> None:
    train(recipe, tmp_path / "run", settings=TINY)
    losses = [r.get("loss") for r in read_metrics(tmp_path / "run")]
    larger = read_recipe(ADDING | {"model": {"name": "ENRNN", "hidden": [6, 4]}})
    train(larger, tmp_path / "other", settings=TINY)
    for name in ("checkpoint.pt", "best-valid.pt"):
        (tmp_path / "other" / name).replace(tmp_path / "run" / name)
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(RunError, match=r"could not use .*best-valid.pt, which is of another run"):
        evaluate(tmp_path / "run", "test")
    with pytest.raises(RunError, match=r"could not use .*checkpoint.pt, which is of another run"):
        evaluate(tmp_path / "run", "test", weights="last")
    with pytest.raises(RunError, match=r"could not use .*checkpoint.pt, .*cayley resume starts"):
        resume(tmp_path / "run")
    (tmp_path / "run" / "checkpoint.pt").unlink()
    resume(tmp_path / "run")
    assert [r.get("loss") for r in read_metrics(tmp_path / "run")] == losses


@pytest.fixture(scope="module")
def whole(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, to be copied."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(recipe, folder, settings=TINY)
    return folder


def copy_run(whole: Path, target: Path, *, finished: bool = True) -> Path:
    shutil.copytree(whole, target)
    if not finished:
        (target / "result.json").unlink()
    return target


def use(folder: Path, name: str) -> None:
    """Do what reads a file of a run."""
    if name.startswith("best"):
        evaluate(folder, "test")
    else:
        resume(folder)


FILES = ["checkpoint.pt", "best-valid.pt", "run.json", "result.json", "metrics.jsonl"]


@pytest.mark.parametrize("place", [0.1, 0.3, 0.5, 0.7, 0.9, 0.999])
@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_found(name: str, place: float, whole: Path, tmp_path: Path) -> None:
    run = copy_run(whole, tmp_path / "run", finished=name == "result.json")
    content = bytearray((run / name).read_bytes())
    content[int(place * len(content))] ^= 1
    (run / name).write_bytes(content)
    with pytest.raises(RunError, match=name):
        use(run, name)


@pytest.mark.parametrize("name", ["checkpoint.pt", "best-valid.pt", "result.json", "metrics.jsonl"])
def test_a_file_of_another_seed_is_refused(
    name: str, recipe: Recipe, whole: Path, tmp_path: Path
) -> None:
    train(recipe, tmp_path / "other", seed=8, settings=TINY)
    run = copy_run(whole, tmp_path / "run", finished=name == "result.json")
    shutil.copyfile(tmp_path / "other" / name, run / name)
    words = "begin with the" if name == "metrics.jsonl" else "of another run"
    with pytest.raises(RunError, match=f"{name}.*{words}"):
        use(run, name)


def test_metrics_that_are_too_short_are_not_filled_up(whole: Path, tmp_path: Path) -> None:
    run = copy_run(whole, tmp_path / "run", finished=False)
    start = (run / "metrics.jsonl").read_bytes()[:50]
    (run / "metrics.jsonl").write_bytes(start)
    with pytest.raises(
        RunError, match=r"metrics.jsonl to begin .*, got only 50: put the file back"
    ):
        resume(run)
    assert (run / "metrics.jsonl").read_bytes() == start
    (run / "checkpoint.pt").unlink()
    resume(run)
    assert len(list(read_metrics(run))) == len(list(read_metrics(whole)))


def test_an_edited_recipe_is_refused(whole: Path, tmp_path: Path) -> None:
    run = copy_run(whole, tmp_path / "run", finished=False)
    path = run / "recipe.toml"
    path.write_text("# a remark\n" + path.read_text())
    read_run(run)
    path.write_text(path.read_text().replace("lr = 0.01", "lr = 0.02"))
    for act in (resume, read_run, lambda folder: evaluate(folder, "test")):
        with pytest.raises(RunError, match=r"changed after .*optim.lr = 0.02, not 0.01\): undo"):
            act(run)
    path.write_text(path.read_text().replace("lr = 0.02", "lr = 0.01 # half\nLR = 1"))
    with pytest.raises(RunError, match=r"recipe.toml: .*LR.*: delete it to use the original"):
        read_run(run)
    path.unlink()
    assert resume(run).last == read_result(whole).last
    assert path.read_text() == (whole / "recipe.toml").read_text()


def test_what_a_recipe_says_of_itself_is_not_edited_either(whole: Path, tmp_path: Path) -> None:
    run = copy_run(whole, tmp_path / "run")
    path = run / "recipe.toml"
    path.write_text(path.read_text().replace("reported = []", 'reported = ["mnist-scornn-170"]'))
    with pytest.raises(RunError, match=r'reported = \["mnist-scornn-170"\], not \[\]'):
        read_run(run)


def make_old(folder: Path) -> None:
    """A run as the version before checksums left it."""
    for name in ("run.json", "result.json"):
        if (folder / name).exists():
            content = json.loads((folder / name).read_text())
            for key in ("id", "settings", "changes", "seal", "metrics" * (name == "result.json")):
                content.pop(key, None)
            if name == "run.json":
                content |= {"format": 1, "versions": {"cayley": "0.0.9"}}
            (folder / name).write_text(json.dumps(content, indent=1))
    for path in folder.glob("*.pt"):
        content = path.read_bytes()
        path.write_bytes(content[: content.rindex(b"\ncayley seal")])


def test_old_runs_are_read_but_not_gone_on_with(whole: Path, tmp_path: Path) -> None:
    run = copy_run(whole, tmp_path / "run")
    make_old(run)
    assert resume(run).last == read_result(whole).last
    for act in (
        lambda: evaluate(run, "test"),
        lambda: resume(run, extend=3),
    ):
        with pytest.raises(RunError, match=r"\.pt, which is old: .* cayley 0.0.9 in format 1"):
            act()
    (run / "result.json").unlink()
    with pytest.raises(RunError, match="which is old"):
        resume(run)
    (run / "checkpoint.pt").unlink()
    with pytest.raises(RunError, match="which is old"):
        resume(run)


STRANGER = """
from pathlib import Path
from cayley.lab.tasks.synthetic import Adding

Path("ran").write_text("")


class Stranger(Adding):
    pass
"""


def test_the_module_of_a_stranger_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "stranger.py").write_text(STRANGER)
    recipe = read_recipe(
        ADDING | {"task": {"name": "stranger:Stranger"}, "training": {"batch": 16, "steps": 2}}
    )
    train(recipe, tmp_path / "run", settings=TINY)
    (tmp_path / "run" / "result.json").unlink()
    del sys.modules["stranger"]
    (tmp_path / "ran").unlink()
    for act in (resume, lambda folder: evaluate(folder, "test")):
        with pytest.raises(RunError, match=r"task.name = 'stranger:Stranger'.* add --trust"):
            act(tmp_path / "run")
    assert read_runs([tmp_path])[0]
    assert not (tmp_path / "ran").exists()
    result = resume(tmp_path / "run", trust=True)
    assert evaluate(tmp_path / "run", "test", trust=True) == result.selected["test"].scores
    assert (tmp_path / "ran").exists()


def metric(pool: Callable[[Tensor], Any]) -> property:
    """The metrics of a task with a pool of one's own."""
    return property(lambda task: (replace(mean_squared_error, pool=pool),))


def test_a_metric_may_be_a_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Adding, "metrics", metric(lambda rows: rows.sum()))
    result = train(read_recipe(ADDING), tmp_path, settings=TINY)
    assert result.selected == read_result(tmp_path).selected


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ({}, "expected a finite mse of the naive predictor on the split valid, got none"),
        ({"mse": math.nan}, "expected a finite mse of the naive predictor .* got nan"),
        ({"mse": 0.5, "mae": math.inf}, "expected a finite mae of the naive predictor .* got inf"),
        ({"mse": None}, "expected one number as the value of the metric mse, got None"),
    ],
)
def test_a_baseline_without_a_number_begins_no_run(
    scores: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Adding, "baseline", lambda task, split: scores)
    with pytest.raises(RecipeError, match=message):
        train(read_recipe(ADDING), tmp_path, settings=TINY)
    assert not (tmp_path / "run.json").exists()


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        (lambda rows: rows, "expected one number as the value of the metric mse, got shape"),
        (lambda rows: None, "expected a value of mse, .* got none for the split valid"),
    ],
)
def test_a_metric_without_a_number_is_named(
    pool: Callable[[Tensor], Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Adding, "metrics", metric(pool))
    monkeypatch.setattr(Adding, "baseline", lambda task, split: {"mse": 0.5})
    with pytest.raises(RecipeError, match=message):
        train(read_recipe(ADDING), tmp_path, settings=TINY)


def test_what_cannot_work_leaves_nothing_behind(tmp_path: Path) -> None:
    recipe = find_recipe("quickstart").recipe(overrides=["task.TT=3"])
    with pytest.raises(RecipeError, match="did you mean 'T'"):
        train(recipe, tmp_path / "run", settings=TINY)
    counted = read_recipe(ADDING | {"parameters": 99})
    with pytest.raises(RecipeError, match=r"expected a model of 99 parameters, got \d+"):
        train(counted, tmp_path / "run", settings=TINY)
    mnist = read_recipe(ADDING | {"task": {"name": "mnist"}})
    with pytest.raises(DataError, match="--data"):
        train(mnist, tmp_path / "run", settings=RunSettings())
    for changes, message in (
        ({"evaluation": {"batch": 200}}, "split valid: expected a batch of 1 to 99 streams"),
        ({"training": {"batch": 500, "steps": 1}}, "split train: expected a batch of 1 to 499"),
    ):
        with pytest.raises(RecipeError, match=message):
            train(read_recipe(CHARACTERS | changes), tmp_path / "run", settings=TINY)
    assert not (tmp_path / "run").exists()


def write_sounds(folder: Path, seconds: float = 2.0) -> None:
    """Noise that swells and fades."""
    t = torch.arange(int(8000 * seconds)) / 8000
    for number in range(3):
        samples = (torch.sin(8 * t + number).square() * torch.randn(len(t)) * 3000).short()
        with wave.open(str(folder / f"{number}.wav"), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes(samples.numpy().tobytes())


def test_speech_is_heard_at_the_end(tmp_path: Path) -> None:
    pytest.importorskip("pystoi")
    pytest.importorskip("pesq")
    write_sounds(tmp_path)
    content = SPEECH | {"task": {"name": "speech", "corpus": "own"}}
    settings = RunSettings(Machine("cpu", "64-true", 1), data=tmp_path)
    result = train(read_recipe(content), tmp_path / "run", settings=settings)
    assert result.audio is not None
    assert set(result.audio) == {"segsnr_db", "stoi", "pesq"}
    assert evaluate(tmp_path / "run", "test", audio=True) == result.audio


def test_speech_that_cannot_be_heard_ends_the_run_all_the_same(tmp_path: Path) -> None:
    pytest.importorskip("pystoi")
    pytest.importorskip("pesq")
    write_sounds(tmp_path, seconds=0.2)
    content = SPEECH | {"task": {"name": "speech", "corpus": "own"}}
    settings = RunSettings(Machine("cpu", "64-true", 1), data=tmp_path)
    with (
        pytest.warns(UserWarning, match="stoi: 1 of 1 recordings are left out"),
        pytest.warns(UserWarning, match="pesq: 1 of 1 recordings are left out"),
    ):
        result = train(read_recipe(content), tmp_path / "run", settings=settings)
    assert result.audio is not None
    assert set(result.audio) == {"segsnr_db"}


def test_a_missing_package_is_named_before_recordings_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cayley.lab.training.evaluation.find_spec", lambda name: None)
    for number in range(3):
        (tmp_path / f"{number}.wav").write_text("no sound")
    recipe = read_recipe(SPEECH | {"task": {"name": "speech", "corpus": "own"}})
    with pytest.raises(RecipeError, match=r"expected the package pystoi, .* 'cayley\[speech\]'"):
        train(recipe, tmp_path / "run", settings=RunSettings(data=tmp_path))


def test_sound_that_cannot_be_scored_is_refused_before_there_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cayley.lab.training.evaluation.find_spec", lambda name: True)
    for changes, message in (
        ({"task": {"name": "adding"}}, "expected a speech task, got Adding"),
        ({"evaluation": {"audio": True, "splits": ["valid"]}}, "expected the split test"),
        ({"task": {"name": "speech", "rate": 10_000}}, "expected a rate of 8000 or 16000 Hz"),
    ):
        with pytest.raises(RecipeError, match=message):
            train(read_recipe(SPEECH | changes), tmp_path / "run", settings=TINY)
    monkeypatch.setattr("cayley.lab.training.evaluation.find_spec", lambda name: None)
    with pytest.raises(RecipeError, match="expected the package pystoi, got none"):
        train(read_recipe(SPEECH), tmp_path / "run", settings=TINY)
    assert not (tmp_path / "run").exists()


def test_checkpoints_hold_tensors_and_numbers_only(recipe: Recipe, tmp_path: Path) -> None:
    train(recipe, tmp_path / "run", settings=TINY)
    for name in ("checkpoint.pt", "best-valid.pt"):
        torch.load(tmp_path / "run" / name, weights_only=True)
    state = load_tensors(tmp_path / "run", "best-test.pt")
    assert "structured.weight_hh_l0.A" in str(state["model"].keys())


def test_a_password_of_the_command_is_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["cayley", "--data", "/a:b@c", "--storage=mysql+pymysql://me:a/b:c@host:3306/db"]
    monkeypatch.setattr(sys, "argv", words)
    recipe = read_recipe(ADDING | {"training": {"batch": 16, "steps": 1}})
    train(recipe, tmp_path / "run", settings=TINY)
    hidden = "--storage=mysql+pymysql://me:***@host:3306/db"
    assert read_run(tmp_path / "run")[0].command == (*words[:3], hidden)
