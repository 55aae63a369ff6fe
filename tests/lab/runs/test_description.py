import json
from typing import Any

import pytest
from lab.descriptions import CONTENT, make_description

from cayley.lab.errors import RecipeError
from cayley.lab.runs.description import DataPlace, RunDescription, TrialInfo


def test_json_is_kept_key_by_key() -> None:
    written = json.loads(json.dumps(make_description().to_json()))
    assert written == CONTENT
    assert list(written) == list(CONTENT)
    assert list(written["machine"]) == list(CONTENT["machine"])


def test_what_is_unknown_is_passed_over_and_what_may_be_missing_is_filled_in() -> None:
    content = {key: value for key, value in CONTENT.items() if key not in ("git", "sizes")}
    content |= {"tomorrow": 1, "data": {"folder": "/there", "tomorrow": 2}}
    description = RunDescription.parse(content)
    assert (description.git, description.sizes) == (None, {})
    assert description.data == DataPlace("/there")


@pytest.mark.parametrize("key", ["format", "seed", "steps", "metric", "machine", "data"])
def test_what_is_missing_is_named(key: str) -> None:
    content = {name: value for name, value in CONTENT.items() if name != key}
    with pytest.raises(RecipeError, match=f"missing key {key}"):
        RunDescription.parse(content)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": "x"}, "seed: expected an integer, got 'x'"),
        ({"machine": {"accelerator": "cpu"}}, "missing key machine.precision"),
        ({"baseline": {"test": {"mse": None}}}, "baseline.test.mse: expected a number, got None"),
        ({"metric": {"name": "mse", "better": "x"}}, "metric.better: expected 'lower' or 'higher'"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make_description(**change)


def test_a_trial_is_kept() -> None:
    trial = {"study": "mine", "number": 3, "params": {"optim.lr": 0.1, "model.hidden": [5, 4]}}
    description = make_description(trial=trial)
    assert description.trial == TrialInfo("mine", 3, trial["params"])
    assert json.loads(json.dumps(description.to_json()))["trial"] == trial


@pytest.mark.parametrize(
    ("together", "words", "alone"),
    [
        (1, ["--together"], True),
        (3, [], False),
        # older runs do not say how many there were
        (None, ["--together"], False),
        (None, [], True),
    ],
)
def test_whose_time_a_run_has(together: int | None, words: list[str], alone: bool) -> None:
    content = CONTENT | {"together": together, "command": ["cayley", "train", *words]}
    if together is None:
        del content["together"]
    assert RunDescription.parse(content).timed_alone is alone
