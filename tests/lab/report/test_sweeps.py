"""Sweeps of a report, from trials that are made up."""

import json
import math
import random
from pathlib import Path
from typing import Literal

import pytest
from lab.report.folders import make_recipe, write_run

from cayley.lab.report import read_runs, sweeps
from cayley.lab.report.sweep_charts import draw_sweep, place
from cayley.lab.report.sweeps import SweepResult, Trial, find_importances, read_sweeps, sweep_table
from cayley.lab.runs import SearchedKey, SweepRecord

KEYS = (
    SearchedKey("optim.lr", low=1e-4, high=1e-1, log=True),
    SearchedKey("model.hidden", low=8, high=32, step=8),
    SearchedKey("optim.name", ("Adam", "SGD")),
    SearchedKey("model.sizes", ([5, 4], [6, 3])),
    SearchedKey("optim.options.momentum", low=0.0, high=0.9, conditional=True),
)


def make(count: int, direction: Literal["minimize", "maximize"] = "minimize") -> SweepResult:
    """A sweep in which the rate alone matters."""
    draw = random.Random(1)
    trials = []
    for number in range(count):
        lr = 10 ** draw.uniform(-4, -1)
        params = {"optim.lr": lr, "model.hidden": draw.choice([8, 16, 24, 32])}
        params |= {"optim.name": draw.choice(["Adam", "SGD"])}
        params |= {"model.sizes": draw.choice([[5, 4], [6, 3]])}
        if params["optim.name"] == "SGD":
            params["optim.options.momentum"] = draw.uniform(0, 0.9)
        value = 0.1 + (math.log10(lr) + 2) ** 2
        state = "pruned" if number % 7 == 6 else "complete"
        if state == "pruned":
            trials.append(Trial(number, "pruned", None, params, Path(f"{number}")))
        else:
            sign = 1 if direction == "minimize" else -1
            trials.append(Trial(number, "complete", sign * value, params, Path(f"{number}")))
    record = SweepRecord(
        study="mine", recipe="quickstart", metric="valid_mse", direction=direction, keys=KEYS
    )
    return SweepResult(record, tuple(trials))


def test_what_matters_is_found() -> None:
    pytest.importorskip("optuna", reason="sweeps need the extra sweep")
    for direction in ("minimize", "maximize"):
        shares = find_importances(make(60, direction))
        assert next(iter(shares)) == "optim.lr"
        assert shares["optim.lr"] > 0.5
        assert sum(shares.values()) == pytest.approx(1)


def test_what_keeps_importances_away_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    *_, coordinates = draw_sweep(make(7))
    assert coordinates.caption.endswith("Importances need 8 finished trials.")
    monkeypatch.setattr(sweeps, "find_spec", lambda name: None)
    *_, coordinates = draw_sweep(make(20))
    assert coordinates.caption.endswith("pip install 'cayley[sweep]'.")


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_the_best_come_first(direction: Literal["minimize", "maximize"]) -> None:
    sweep = make(20, direction)
    values = [one.value for one in sweep.complete if one.value is not None]
    assert values == sorted(values, reverse=direction == "maximize")
    assert "20 trials of quickstart: 18 complete, 2 pruned." in sweep.sentence
    assert f"of trial {sweep.complete[0].number}: optim.lr = " in sweep.sentence
    table = sweep_table(sweep)
    assert len(table.rows) == 10
    assert table.rows[0][0] == str(sweep.complete[0].number)
    # a setting that a condition leaves out
    adam = next(row for row in table.rows if "Adam" in row)
    assert adam[-1] == "–"
    assert len(table.csv().splitlines()) == 21


def test_charts_show_every_finished_trial() -> None:
    sweep = make(20)
    history, coordinates, *_ = draw_sweep(sweep)
    values = history.spec["data"]["values"]
    assert [one["trial"] for one in values] == [k for k in range(20) if k % 7 != 6]
    best = [one["best"] for one in values]
    assert best == sorted(best, reverse=True)
    assert best[-1] == sweep.complete[0].value
    points = coordinates.spec["data"]["values"]
    assert {one["trial"] for one in points} == {one.number for one in sweep.complete}
    assert all(0 <= one["place"] <= 1 for one in points)
    # the best is drawn last, over the others
    assert points[-1]["trial"] == sweep.complete[0].number
    # JSON has no word for what is not finite
    json.dumps([chart.spec for chart in (history, coordinates)], allow_nan=False)
    assert draw_sweep(SweepResult(sweep.record, sweep.trials[6:7])) == []


@pytest.mark.slow
def test_charts_can_be_drawn() -> None:
    for chart in draw_sweep(make(20)):
        assert chart.png().startswith(b"\x89PNG")


def test_places_on_an_axis() -> None:
    assert place(KEYS[0], 1e-4) == 0
    assert place(KEYS[0], 1e-1) == 1
    assert place(KEYS[1], 16) == pytest.approx(1 / 3)
    assert [place(KEYS[3], value) for value in ([5, 4], [6, 3])] == [0, 1]


def test_metrics_of_ones_own_keep_their_names(tmp_path: Path) -> None:
    """Some are shorthands where papers print them."""
    recipe = make_recipe("mine", "mine", {"name": "LSTM", "hidden": 8})
    scores = {"loss": 0.5, "error_percent": 2.0}
    folder = write_run(tmp_path, recipe, scores=scores, start=scores, baseline=scores)
    content = json.loads((folder / "run.json").read_text())
    content |= {"trial": {"study": "mine", "number": 0, "params": {}}}
    (folder / "run.json").write_text(json.dumps(content))
    found = {}
    for name in ("test_loss", "test_error_percent"):
        record = SweepRecord(
            study="mine", recipe="mine", metric=name, direction="minimize", keys=()
        )
        (folder.parent / "sweep.json").write_text(json.dumps(record.to_json()))
        runs, _ = read_runs([tmp_path])
        (sweep,) = read_sweeps([tmp_path], runs)
        found[sweep.label] = [(one.state, one.value) for one in sweep.trials]
    assert found == {
        "test loss": [("complete", 0.5)],
        "test error percent": [("complete", 2.0)],
    }
