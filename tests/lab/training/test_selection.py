import json
from typing import Any

import pytest

from cayley.lab.runs import BestValue
from cayley.lab.training.selection import Evaluation, Selection

VALID = [0.5, 0.9, 0.8, 0.9]
TEST = [0.6, 0.7, 0.95, 0.8]


def run(select: Any, better: Any = "higher") -> Selection:
    selection = Selection("accuracy", better, select)
    for step, (valid, test) in enumerate(zip(VALID, TEST, strict=True)):
        scores = {"valid": {"accuracy": valid, "x": -valid}, "test": {"accuracy": test, "x": -test}}
        selection.add(Evaluation(step, step / 2, scores))
    return selection


@pytest.mark.parametrize(
    ("select", "valid", "test", "by"),
    [
        ("valid", 0.9, 0.7, ("valid", "valid")),
        ("test", 0.8, 0.95, ("test", "test")),
        ("last", 0.9, 0.8, ("last", "last")),
        ("each", 0.9, 0.95, ("valid", "test")),
    ],
)
def test_what_counts(select: str, valid: float, test: float, by: tuple[str, str]) -> None:
    selected = run(select).selected()
    assert selected["valid"].scores == {"accuracy": valid, "x": -valid}
    assert selected["test"].scores == {"accuracy": test, "x": -test}
    assert (selected["valid"].chosen_by, selected["test"].chosen_by) == by


def test_the_first_of_equals_is_the_best() -> None:
    best = run("valid").best_values()
    assert best["valid"] == BestValue(1, 0.5, 0.9)
    assert best["test"] == BestValue(2, 1.0, 0.95)
    assert run("valid", "lower").best_values()["valid"].step == 0


def test_evaluations_since_the_best() -> None:
    assert run("valid").stale == 2
    assert run("test").stale == 1
    assert run("each").stale == 2
    assert run("last").stale == 2


def test_state_survives_json() -> None:
    selection = run("valid")
    again = Selection("accuracy", "higher", "valid")
    again.load_state_dict(json.loads(json.dumps(selection.state_dict())))
    assert again == selection
    assert Selection("a", "lower", "last").state_dict()["last"] is None
