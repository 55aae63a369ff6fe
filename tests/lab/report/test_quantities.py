from dataclasses import replace
from pathlib import Path

import pytest
from lab.report.folders import make_recipe, write_run

from cayley.lab.recipes import published
from cayley.lab.report.quantities import (
    Quantity,
    chosen_by,
    find_baseline,
    is_higher_better,
    measure,
)
from cayley.lab.report.reading import MeasuredRun, read_runs

MEASURED = {"accuracy", "bpc", "cross_entropy", "mse", "perplexity", "roc_auc"}
MEASURED |= {"minutes_per_epoch", "pesq", "segsnr_db", "stoi"}


def test_every_published_metric_is_one_of_ours() -> None:
    names = {one.metric for one in published.results().values()}
    names = {name for name in names if not name.startswith("invariant_")}
    assert {Quantity.parse(name).metric for name in names} == MEASURED


@pytest.mark.parametrize(
    ("name", "split", "metric", "scale"),
    [
        ("test_accuracy_percent", "test", "accuracy", 100.0),
        ("permuted_test_accuracy", "test", "accuracy", 1.0),
        ("test_loss", "test", "cross_entropy", 1.0),
        ("train_cross_entropy", "train", "cross_entropy", 1.0),
        ("perplexity", "test", "perplexity", 1.0),
        ("segsnr_db", "test", "segsnr_db", 1.0),
        ("minutes_per_epoch", "", "minutes_per_epoch", 1.0),
    ],
)
def test_names(name: str, split: str, metric: str, scale: float) -> None:
    assert Quantity.parse(name) == Quantity(split, metric, scale)


@pytest.fixture
def run(tmp_path: Path) -> MeasuredRun:
    folder = write_run(
        tmp_path,
        make_recipe("mine", "mine", {"name": "LSTM", "hidden": 8}),
        scores={"accuracy": 0.875, "cross_entropy": 0.5},
        start={"accuracy": 0.1, "cross_entropy": 2.3},
        baseline={"accuracy": 0.25, "cross_entropy": 2.0},
        audio={"segsnr_db": 4.5},
    )
    return read_runs([folder])[0][0]


def test_values(run: MeasuredRun) -> None:
    assert measure(run, Quantity.parse("test_accuracy_percent")) == 87.5
    assert find_baseline(run, Quantity.parse("test_accuracy_percent")) == 25.0
    assert measure(run, Quantity.parse("valid_loss")) == 0.5
    assert measure(run, Quantity.parse("minutes_per_epoch")) == 55 / 60
    assert measure(run, Quantity.parse("segsnr_db")) == 4.5


def test_time_that_networks_share_is_that_of_none(run: MeasuredRun) -> None:
    shared = replace(run, description=replace(run.description, together=3))
    assert measure(shared, Quantity.parse("minutes_per_epoch")) is None
    assert measure(shared, Quantity.parse("test_accuracy")) == 0.875


def test_what_was_not_measured(run: MeasuredRun) -> None:
    for name in ("train_loss", "test_mse", "stoi"):
        assert measure(run, Quantity.parse(name)) is None
    assert find_baseline(run, Quantity.parse("stoi")) is None
    assert chosen_by(run, Quantity.parse("minutes_per_epoch")) == ""
    assert chosen_by(run, Quantity.parse("test_accuracy")) == "test"


def test_which_direction_is_better(run: MeasuredRun) -> None:
    higher = ("test_accuracy", "segsnr_db", "stoi", "pesq")
    lower = ("test_loss", "minutes_per_epoch")
    assert all(is_higher_better(run, Quantity.parse(name)) for name in higher)
    assert not any(is_higher_better(run, Quantity.parse(name)) for name in lower)
