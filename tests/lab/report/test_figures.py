import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import vl_convert
from lab.report.folders import make_recipe, write_run

from cayley.lab.recipes import find_recipe
from cayley.lab.report.charts import COLORS, static_chart
from cayley.lab.report.figures import VEGALITE, Figure, draw_figures
from cayley.lab.report.reading import read_runs
from cayley.lab.report.summary import summarize


def draw(folder: Path) -> dict[str, Figure]:
    drawn = draw_figures(summarize(*read_runs([folder])).sections)
    figures = [figure for several in drawn.values() for figure in several]
    assert len({figure.name for figure in figures}) == len(figures)
    return {figure.title: figure for figure in figures}


def layer(figure: Figure, mark: str) -> dict[str, Any]:
    """The first marks of a kind."""
    return next(one for one in figure.spec["layer"] if one["mark"]["type"] == mark)


def traces(figure: Figure) -> list[dict[str, Any]]:
    return figure.spec["data"]["values"]


def scale(figure: Figure, axis: str) -> dict[str, Any]:
    return layer(figure, "line")["encoding"][axis]["scale"]


def write_curve(
    folder: Path, name: str, values: list[float], seed: int = 5544, *overrides: str, **more: Any
) -> Path:
    """A run of a recipe of the package that has these test scores, an evaluation an epoch."""
    recipe = find_recipe(name).recipe(more.pop("variant", "paper"), overrides)
    metric = "mse" if recipe.task.name == "adding" else "accuracy"
    numbers: dict[str, Any] = {key: {metric: 0.5} for key in ("scores", "start", "baseline")}
    run = write_run(folder, recipe, seed, **numbers, overrides=overrides, **more)
    lines = [
        {
            "kind": "eval",
            "step": 1100 * epoch,
            "epoch": float(epoch),
            "seconds": 60.0 * epoch + seed - 5544,
            "scores": {split: {metric: value} for split in recipe.evaluation.splits},
        }
        for epoch, value in enumerate(values)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


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
    evaluations = [one for one in records if one["kind"] == "eval"]
    (trace,) = traces(figures["mnist, order = permuted: test accuracy"])
    assert list(trace["step"]) == [one["step"] for one in evaluations]
    assert list(trace["epoch"]) == pytest.approx([one["epoch"] for one in evaluations], rel=1e-5)
    assert list(trace["time"]) == pytest.approx(
        [one["seconds"] / 60 for one in evaluations], rel=1e-5
    )
    expected = [one["scores"]["test"]["accuracy"] for one in evaluations]
    assert list(trace["value"]) == pytest.approx(expected, rel=1e-5)
    assert trace["seeds"] == "5544, not finished"


def test_every_row_is_a_line(runs: Path) -> None:
    figure = draw(runs)["mnist: test accuracy"]
    assert {trace["row"]: trace["seeds"] for trace in traces(figure)} == {
        "lstm/mnist-128": "5544",
        "scornn/mnist-170": "5544, 5545, 5546",
        "scornn/mnist-170 (model.hidden=64)": "5544",
    }


def test_seeds_are_mean_and_band(tmp_path: Path) -> None:
    for seed, values in ((5544, [0.1, 0.5, 0.9]), (5545, [0.1, 0.7, 0.6]), (5546, [0.1, 0.6])):
        write_curve(tmp_path, "scornn/mnist-170", values, seed)
    # the same seed once more is no other seed, and a run that goes on tells nothing yet
    write_curve(tmp_path, "scornn/mnist-170", [0.1, 0.5, 0.9], 5544, suffix="-copy")
    write_curve(tmp_path, "scornn/mnist-170", [0.1, 0.0], 5547, finished=False)
    figure = draw(tmp_path)["Figure 2.8: test accuracy"]
    (trace,) = traces(figure)
    assert trace["step"] == (0, 1100)
    assert trace["value"] == pytest.approx((0.1, 0.6))
    assert (trace["low"], trace["high"]) == ((0.1, 0.5), (0.1, 0.7))
    assert trace["time"] == pytest.approx((0.75 / 60, 1 + 0.75 / 60), abs=1e-3)
    assert layer(figure, "area")["encoding"]["y2"] == {"field": "high"}
    assert "its band from the lowest to the highest" in figure.caption


def share_time(folder: Path) -> None:
    """Have a run be one of two that took their steps side by side."""
    description = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(description | {"together": 2}))


def test_shared_time_is_on_no_axis(tmp_path: Path) -> None:
    for seed in (5544, 5545):
        last = write_curve(tmp_path, "scornn/mnist-170", [0.1, 0.5], seed)
    share_time(last)
    other = write_curve(tmp_path, "lstm/mnist-256", [0.1, 0.5])
    share_time(other)
    figure = draw(tmp_path)["Figure 2.8: test accuracy"]
    found = {trace["row"]: trace["time"] for trace in traces(figure)}
    assert found == {"scoRNN 170": (0.0, 1.0), "LSTM 256": (None, None)}
    assert "time" in figure.times
    assert "have no minutes of their own" in figure.caption


def test_without_any_time_there_is_no_axis_of_it(tmp_path: Path) -> None:
    share_time(write_curve(tmp_path, "scornn/mnist-170", [0.1, 0.5]))
    figure = draw(tmp_path)["Figure 2.8: test accuracy"]
    assert list(figure.times) == ["step", "epoch"]
    assert "minutes" not in figure.caption
    assert vl_convert.vegalite_to_svg(static_chart(figure.spec), vl_version=VEGALITE)


def test_one_seed_has_no_band(tmp_path: Path) -> None:
    write_curve(tmp_path, "scornn/mnist-170", [0.1, 0.5])
    figure = draw(tmp_path)["Figure 2.8: test accuracy"]
    assert "area" not in [one["mark"]["type"] for one in figure.spec["layer"]]
    assert figure.caption.startswith("A line a run.")


def test_a_figure_shows_recipes_of_all_tables(tmp_path: Path) -> None:
    """ENRNN's recipe is of the figure, scoRNN's of another, which shows ten epochs of it."""
    write_curve(tmp_path, "enrnn/adding-750", [1.0, 0.1, 0.01])
    write_curve(tmp_path, "scornn/adding-750", [0.5**epoch for epoch in range(11)])
    write_curve(tmp_path, "scornn/adding-750", [1.0, 0.5], variant="code")
    figures = draw(tmp_path)
    figure = figures["Figure 2.12: test MSE"]
    found = {trace["row"]: trace["epoch"][-1] for trace in traces(figure)}
    assert found == {"ENRNN": 2.0, "scoRNN": 6.0, "scoRNN, code": 1.0}
    assert [trace["row"] for trace in traces(figures["Figure 2.17: test MSE"])] == ["64"]
    assert traces(figures["Figure 2.6, T = 750: test MSE"])[0]["epoch"][-1] == 10.0


def test_other_settings_are_no_part_of_a_figure(tmp_path: Path) -> None:
    write_curve(tmp_path, "scornn/mnist-170", [0.1, 0.5], 5544, "model.hidden=64")
    write_curve(tmp_path, "scornn/mnist-360", [0.1, 0.5], tiny=True)
    assert list(draw(tmp_path)) == ["mnist: test accuracy"]


def test_another_evaluation_is_the_same_training(tmp_path: Path) -> None:
    write_curve(tmp_path, "scornn/mnist-170", [0.1, 0.5], 5544, "evaluation.batch=100")
    assert "Figure 2.8: test accuracy" in draw(tmp_path)


def test_both_splits_in_one_chart(tmp_path: Path) -> None:
    write_curve(tmp_path, "atn-lstm/adding-100", [1.0, 0.1])
    figure = draw(tmp_path)["Figure 3.4: MSE"]
    assert [(trace["row"], trace["part"]) for trace in traces(figure)] == [
        ("ATN", "train"),
        ("ATN", "valid"),
    ]
    dashes = layer(figure, "line")["encoding"]["strokeDash"]
    assert (dashes["field"], dashes["scale"]["domain"]) == ("part", ["valid", "train"])
    assert "Dashed lines: train; solid ones: valid." in figure.caption


def test_a_colour_stays_when_more_is_run(tmp_path: Path) -> None:
    def colors() -> dict[str, str]:
        found = scale(draw(tmp_path)["Figure 2.8: test accuracy"], "color")
        return dict(zip(found["domain"], found["range"], strict=True))

    write_curve(tmp_path, "lstm/mnist-256", [0.1, 0.5])
    before = colors()
    write_curve(tmp_path, "scornn/mnist-170", [0.1, 0.5])
    assert colors()["LSTM 256"] == before["LSTM 256"] != colors()["scoRNN 170"]


def test_baseline_and_published_value_are_drawn(runs: Path) -> None:
    figure = draw(runs)["mnist: test accuracy"]
    assert layer(figure, "rule")["data"]["values"] == [{"value": 0.1135}]
    assert "Outside: the baseline, 0.1135 (the most frequent class" in figure.caption
    (marks,) = (one for one in figure.spec["layer"] if "shape" in one["mark"])
    (mark,) = marks["data"]["values"]
    assert (mark["row"], mark["value"], mark["epoch"]) == ("scornn/mnist-170", 0.973, 20)


def test_a_published_value_is_not_drawn_beside_other_settings(tmp_path: Path) -> None:
    write_curve(tmp_path, "scornn/mnist-170", [0.1, 0.5], 5544, "task.order=permuted")
    (figure,) = (one for name, one in draw(tmp_path).items() if "accuracy" in name)
    assert not [one for one in figure.spec["layer"] if "shape" in one["mark"]]


def test_axes(runs: Path) -> None:
    figures = draw(runs)
    loss, accuracy = figures["adding: test MSE"], figures["mnist: test accuracy"]
    assert (loss.time, loss.positive, loss.logarithmic, loss.zoom) == ("step", True, True, None)
    assert (scale(loss, "x")["type"], scale(loss, "y")["type"]) == ("linear", "log")
    assert "baseline" in loss.caption
    assert "Outside" not in loss.caption
    assert (accuracy.time, accuracy.positive, accuracy.logarithmic) == ("epoch", True, False)
    assert (scale(accuracy, "x")["type"], scale(accuracy, "y")["type"]) == ("linear", "linear")


def test_accuracies_are_zoomed_in_on(runs: Path) -> None:
    """0 to 1 hides 0.968 against 0.973."""
    figure = draw(runs)["mnist: test accuracy"]
    assert figure.zoom is not None
    low, high = figure.zoom
    assert scale(figure, "y")["domain"] == [low, high]
    assert low > 0.5
    assert high >= 0.973
    for trace in traces(figure):
        inside = [low <= value <= high for value in trace["value"]]
        assert sum(inside) >= 0.75 * len(inside) - 1


def test_what_never_learns_is_inside_too(tmp_path: Path) -> None:
    write_curve(tmp_path, "atn-lstm/noisy-mnist", [0.1, 0.9, 0.95, 0.96])
    write_curve(tmp_path, "ln-lstm/noisy-mnist", [0.1, 0.1, 0.1, 0.1])
    figure = draw(tmp_path)["Figure 3.8: test accuracy"]
    assert figure.zoom == (0.1, 0.96)


def test_long_curves_are_thinned(tmp_path: Path) -> None:
    write_curve(tmp_path, "scornn/mnist-170", [0.001 * epoch for epoch in range(1000)])
    figure = draw(tmp_path)["Figure 2.8: test accuracy"]
    (trace,) = traces(figure)
    assert len(trace["step"]) == 150
    assert (trace["step"][0], trace["step"][-1]) == (0, 1100 * 999)
    assert "thinned to 150 points" in figure.caption


def test_no_logarithm_of_zero(tmp_path: Path) -> None:
    recipe = make_recipe("mine", "mine", {"name": "LSTM", "hidden": 8})
    write_run(tmp_path, recipe, scores={"mse": 0.0}, start={"mse": 1.0}, baseline={"mse": 1.0})
    (figure,) = draw(tmp_path).values()
    assert (figure.positive, figure.logarithmic) == (False, False)
    assert scale(figure, "y")["type"] == "linear"


def test_no_two_rows_look_the_same(tmp_path: Path) -> None:
    names = [f"row-{index:02}" for index in range(len(COLORS) + 3)]
    for name in names:
        recipe = make_recipe(name, "mine", {"name": "LSTM", "hidden": 8})
        write_run(tmp_path, recipe, scores={"mse": 0.1}, start={"mse": 1.0}, baseline={"mse": 1.0})
    (figure,) = draw(tmp_path).values()
    colors, dashes = scale(figure, "color"), scale(figure, "strokeDash")
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
    svg = vl_convert.vegalite_to_svg(static_chart(figure.spec, width=640), vl_version=VEGALITE)
    for value in ("0.1", "0.2"):
        assert f"optim.options.weight_of_nothing = {value}<" in svg


def test_a_run_without_evaluations_has_no_curve(tmp_path: Path) -> None:
    recipe = make_recipe("mine", "mine", {"name": "LSTM", "hidden": 8})
    folder = write_run(
        tmp_path, recipe, scores={"mse": 0.1}, start={"mse": 1.0}, baseline={"mse": 1.0}
    )
    (folder / "metrics.jsonl").write_text("")
    assert draw(tmp_path) == {}


def test_files(runs: Path) -> None:
    assert draw(runs)["mnist: test accuracy"].png().startswith(b"\x89PNG\r\n\x1a\n")
