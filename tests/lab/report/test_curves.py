from pathlib import Path
from typing import Any

import pytest
from lab.report.folders import make_recipe, write_run
from lab.report.test_figures import write_curve

from cayley.lab.report.curves import gather_curves, read_curves
from cayley.lab.report.quantities import Quantity
from cayley.lab.report.reading import read_runs
from cayley.lab.report.summary import summarize


def test_curves_are_by_seed_at_the_steps_that_all_have(tmp_path: Path) -> None:
    for seed, values in ((5544, [0.1, 0.5, 0.9]), (5545, [0.1, 0.7]), (5546, [0.1, 0.6, 0.8])):
        write_curve(tmp_path, "scornn/mnist-170", values, seed)
    runs, _ = read_runs([tmp_path])
    curves = read_curves(runs, Quantity("test", "accuracy"), 100)
    assert curves is not None
    assert (curves.seeds, curves.words) == ((5544, 5545, 5546), "5544, 5545, 5546")
    assert (curves.step, curves.epoch) == ((0, 1100), (0.0, 1.0))
    assert curves.values == ((0.1, 0.5), (0.1, 0.7), (0.1, 0.6))
    assert read_curves(runs, Quantity("test", "absent"), 100) is None


def test_long_curves_keep_their_ends(tmp_path: Path) -> None:
    write_curve(tmp_path, "scornn/mnist-170", [0.001 * k for k in range(500)])
    runs, _ = read_runs([tmp_path])
    curves = read_curves(runs, Quantity("test", "accuracy"), 10)
    assert curves is not None
    assert (len(curves.step), curves.step[0], curves.step[-1]) == (10, 0, 1100 * 499)


def test_every_row_and_split_can_be_compared(tmp_path: Path) -> None:
    write_curve(tmp_path, "scornn/mnist-170", [0.1, 0.5])
    write_curve(tmp_path, "scornn/mnist-170", [0.1, 0.6], 5545)
    write_curve(tmp_path, "lstm/adding-200", [1.0, 0.1])
    found = gather_curves(summarize(*read_runs([tmp_path])).rows)
    names = {(one["row"], one["quantity"]): one for one in found}
    assert ("scornn/mnist-170", "test accuracy") in names
    assert ("lstm/adding-200", "test MSE") in names
    one = names["scornn/mnist-170", "test accuracy"]
    assert one["values"] == ((0.1, 0.5), (0.1, 0.6))
    assert one["higher"] is True
    assert one["baseline"] == pytest.approx(0.5)


def test_recipes_of_one_name_have_a_curve_each(tmp_path: Path) -> None:
    for table in ("one", "two"):
        recipe = make_recipe("mine", table, {"name": "LSTM", "hidden": 8})
        numbers: dict[str, Any] = {
            key: {"accuracy": 0.5} for key in ("scores", "start", "baseline")
        }
        write_run(tmp_path / table, recipe, **numbers)
    found = gather_curves(summarize(*read_runs([tmp_path])).rows)
    assert {(one["row"], one["quantity"]) for one in found} == {
        (f"mine (table {table})", f"{split} accuracy")
        for table in ("one", "two")
        for split in ("test", "valid")
    }
    assert len(found) == 4
