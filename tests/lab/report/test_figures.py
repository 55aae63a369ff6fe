import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab.report.folders import make_recipe, write_run

from cayley.lab.report.charts import COLORS
from cayley.lab.report.figures import Figure, draw_figures
from cayley.lab.report.reading import read_runs
from cayley.lab.report.summary import summarize


def draw(folder: Path) -> dict[str, Figure]:
    report = summarize(*read_runs([folder]))
    figures = [figure for section in report.sections for figure in draw_figures(section)]
    assert len({figure.name for figure in figures}) == len(figures)
    return {figure.title: figure for figure in figures}


def values(figure: Figure, mark: str) -> list[dict[str, Any]]:
    """The data that the first marks of a kind show."""
    layer = next(one for one in figure.spec["layer"] if one["mark"]["type"] == mark)
    return layer.get("data", figure.spec["data"])["values"]


def scale(figure: Figure, axis: str) -> str:
    return figure.spec["layer"][0]["encoding"][axis]["scale"]["type"]


def test_curves_are_those_of_the_run_folders(runs: Path) -> None:
    figures = draw(runs)
    assert list(figures) == [
        "mnist: test accuracy",
        "mnist, order = permuted: test accuracy",
        "adding: test MSE",
        "timit: test MSE",
    ]
    (folder,) = (runs / "scornn" / "pmnist-170").iterdir()
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    expected = [
        (one["step"], one["epoch"], one["scores"]["test"]["accuracy"], one["train_loss"])
        for one in records
        if one["kind"] == "eval"
    ]
    points = values(figures["mnist, order = permuted: test accuracy"], "line")
    keys = ("step", "epoch", "value", "loss")
    assert [tuple(point[key] for key in keys) for point in points] == expected
    assert {point["seed"] for point in points} == {"5544, not finished"}


def test_every_run_is_a_line(runs: Path) -> None:
    points = values(draw(runs)["mnist: test accuracy"], "line")
    assert {(point["row"], point["run"]) for point in points} == {
        ("lstm/mnist-128", 0),
        ("scornn/mnist-170", 0),
        ("scornn/mnist-170", 1),
        ("scornn/mnist-170", 2),
        ("scornn/mnist-170 (model.hidden=64)", 0),
    }


def test_baseline_and_published_value_are_drawn(runs: Path) -> None:
    figure = draw(runs)["mnist: test accuracy"]
    assert values(figure, "rule") == [{"value": 0.1135}]
    assert "the baseline, 0.1135 (the most frequent class" in figure.caption
    (layer,) = (one for one in figure.spec["layer"] if "shape" in one["mark"])
    (mark,) = layer["data"]["values"]
    assert (mark["row"], mark["value"], mark["epoch"]) == ("scornn/mnist-170", 0.973, 20)


def test_axes(runs: Path) -> None:
    figures = draw(runs)
    loss, accuracy = figures["adding: test MSE"], figures["mnist: test accuracy"]
    assert (loss.time, loss.positive, loss.logarithmic) == ("step", True, True)
    assert (scale(loss, "x"), scale(loss, "y")) == ("linear", "log")
    assert (accuracy.time, accuracy.positive, accuracy.logarithmic) == ("epoch", True, False)
    assert (scale(accuracy, "x"), scale(accuracy, "y")) == ("linear", "linear")


def test_no_logarithm_of_zero(tmp_path: Path) -> None:
    recipe = make_recipe("mine", "mine", {"name": "LSTM", "hidden": 8})
    write_run(tmp_path, recipe, scores={"mse": 0.0}, start={"mse": 1.0}, baseline={"mse": 1.0})
    (figure,) = draw(tmp_path).values()
    assert (figure.positive, figure.logarithmic, scale(figure, "y")) == (False, False, "linear")


def test_no_two_rows_look_the_same(tmp_path: Path) -> None:
    names = [f"row-{index:02}" for index in range(len(COLORS) + 3)]
    for name in names:
        recipe = make_recipe(name, "mine", {"name": "LSTM", "hidden": 8})
        write_run(tmp_path, recipe, scores={"mse": 0.1}, start={"mse": 1.0}, baseline={"mse": 1.0})
    (figure,) = draw(tmp_path).values()
    encoding = figure.spec["layer"][0]["encoding"]
    colors, dashes = encoding["color"]["scale"], encoding["strokeDash"]["scale"]
    assert colors["domain"] == dashes["domain"] == names
    looks = zip(colors["range"], map(tuple, dashes["range"]), strict=True)
    assert len(set(looks)) == len(names)


def test_long_labels_are_not_cut(tmp_path: Path) -> None:
    """What tells rows apart may be at their ends."""
    for weight_decay in (0.1, 0.2):
        recipe = make_recipe("a-name-that-is-not-short", "mine", {"name": "LSTM", "hidden": 8})
        options = {"momentum": weight_decay, "weight_of_nothing": weight_decay}
        optim = replace(recipe.optim, weight_decay=weight_decay, options=options)
        recipe = replace(recipe, optim=optim)
        scores = {"scores": {"mse": 0.1}, "start": {"mse": 1.0}, "baseline": {"mse": 1.0}}
        write_run(tmp_path, recipe, suffix=f"-{weight_decay}", **scores)
    (figure,) = draw(tmp_path).values()
    svg = figure.svg()
    for value in ("0.1", "0.2"):
        assert f"optim.options.weight_of_nothing = {value})<" in svg


def test_a_run_without_evaluations_has_no_curve(tmp_path: Path) -> None:
    recipe = make_recipe("mine", "mine", {"name": "LSTM", "hidden": 8})
    folder = write_run(
        tmp_path, recipe, scores={"mse": 0.1}, start={"mse": 1.0}, baseline={"mse": 1.0}
    )
    (folder / "metrics.jsonl").write_text("")
    assert draw(tmp_path) == {}


@pytest.mark.parametrize("title", ["mnist: test accuracy", "adding: test MSE"])
def test_files(runs: Path, title: str) -> None:
    figure = draw(runs)[title]
    assert figure.svg().startswith("<svg")
    assert "currentColor" in figure.svg()
    # only what can be seen: points wait for a pointer
    assert "training loss" in str(figure.spec)
    assert "training loss" not in figure.svg()
    assert figure.png().startswith(b"\x89PNG\r\n\x1a\n")
