import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from lab.looking import look_once
from lab.report import folders
from lab.report.folders import make_recipe

from cayley.lab.recipes import find_recipe
from cayley.lab.tasks.sources import Source


@pytest.fixture(scope="session", autouse=True)
def quick_runs() -> Iterator[None]:
    """Runs that begin and save quickly, of which a test may have many.

    No file must outlive the machine.
    """
    with pytest.MonkeyPatch.context() as patch:
        look_once(patch)
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture
def source() -> Source:
    """The real data, where they are."""
    if not (folder := os.environ.get("CAYLEY_DATA")):
        pytest.skip("no data: set CAYLEY_DATA to a folder with those that cayley list names")
    return Source(Path(folder))


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of runs: seeds, overrides, sound, an unfinished run, and damaged ones."""
    # their tables stand for those of the package
    monkeypatch.setattr("cayley.lab.report.summary.is_packaged", lambda recipe: True)
    write_run = partial(folders.write_run, tmp_path / "runs")
    images = {
        "start": {"accuracy": 0.1, "cross_entropy": 2.303},
        "baseline": {"accuracy": 0.1135, "cross_entropy": 2.301},
    }
    scornn = {"name": "ScoRNN", "hidden": 170, "negative_ones": 17}
    reported = ("mnist-scornn-170", "mnist-scornn-170-scornn2018")
    recipe = make_recipe(
        "scornn/mnist-170",
        "images",
        scornn,
        reported=reported,
        unstated=["training.batch"],
        note="Batch size from the authors' code.",
    )
    for seed, accuracy in ((5544, 0.9712), (5545, 0.9745), (5546, 0.9728)):
        write_run(recipe, seed, scores={"accuracy": accuracy, "cross_entropy": 0.09}, **images)
    small = make_recipe("scornn/mnist-170", "images", scornn | {"hidden": 64}, reported=reported)
    write_run(
        small,
        scores={"accuracy": 0.951, "cross_entropy": 0.16},
        overrides=("model.hidden=64",),
        suffix="-f12df79b",
        parameters=2891,
        **images,
    )
    lstm = make_recipe("lstm/mnist-128", "images", {"name": "LSTM", "hidden": 128})
    folder = write_run(
        lstm, scores={"accuracy": 0.9821, "cross_entropy": 0.06}, parameters=67850, **images
    )
    text = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join([*text[:4], '{"kind": "ev\n', *text[4:]]))
    permuted = make_recipe(
        "scornn/pmnist-170",
        "images",
        scornn | {"negative_ones": 85},
        task={"name": "mnist", "order": "permuted"},
        reported=("pmnist-scornn-170",),
    )
    write_run(permuted, scores={"accuracy": 0.943, "cross_entropy": 0.2}, finished=False, **images)

    quick = find_recipe("quickstart").recipe(overrides=["training.steps=200"])
    squares = {
        "start": {"mse": 0.63},
        "baseline": {"mse": 1 / 6},
        "rule": "always 1: the variance of the sum of two uniform numbers, 1/6",
        "parameters": 3481,
        "overrides": ("training.steps=200",),
        "machine": {"accelerator": "cpu", "device": "x86_64", "threads": 2},
    }
    write_run(quick, scores={"mse": 0.00123}, **squares)
    folder = write_run(quick, 5545, scores={"mse": 0.0021}, **squares)
    (folder / "result.json").write_text('{"status": "done", "sel')

    names = ("valid-mse", "segsnr-db", "stoi")
    speech = make_recipe(
        "scornn/timit300-425",
        "speech",
        scornn | {"hidden": 425},
        task={"name": "timit"},
        evaluation={"select": "valid", "audio": True},
        reported=tuple(f"timit300-scornn-425-{name}" for name in names),
    )
    write_run(
        speech,
        scores={"mse": 1.43},
        start={"mse": 60.0},
        baseline={"mse": 31.2},
        rule="the frame before once more: the mean of (x_{t+1} − x_t)²",
        parameters=199729,
        audio={"segsnr_db": 4.2, "stoi": 0.82, "pesq": 2.31},
    )
    broken = tmp_path / "runs" / "broken" / "paper-seed1"
    broken.mkdir(parents=True)
    (broken / "run.json").write_text("{")
    return tmp_path / "runs"
