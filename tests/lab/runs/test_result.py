import json
from typing import Any

import pytest

from cayley.lab.errors import RecipeError
from cayley.lab.runs.result import BestValue, RunResult, SelectedScores

RESULT = RunResult(
    status="done",
    step=10,
    epoch=2.0,
    seconds=1.5,
    select="valid",
    selected={"test": SelectedScores(5, 1.0, {"mse": 0.25}, "valid")},
    best={"valid": BestValue(5, 1.0, 0.2)},
    last={"test": {"mse": 0.3}},
    finished="2026-11-15T08:00:00+00:00",
)


def test_json_and_back() -> None:
    written = json.loads(json.dumps(RESULT.to_json()))
    assert RunResult.parse(written) == RESULT
    assert RunResult.parse(written | {"tomorrow": 1}) == RESULT
    # the order and the names of the file
    assert " ".join(written) == (
        "status step epoch seconds evaluation_seconds seconds_per_epoch select selected best last "
        "train_loss_best audio finished metrics weights"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"audio": {"stoi": "1"}}, "audio.stoi: expected a number, got '1'"),
        ({"selected": []}, r"selected: expected a table, got \[\]"),
        ({"selected": {"test": {"step": 1}}}, "missing key selected.test.epoch"),
        ({"seconds": None}, "seconds: expected a number, got None"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        RunResult.parse(RESULT.to_json() | change)
