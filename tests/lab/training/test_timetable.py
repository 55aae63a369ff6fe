from typing import Any

import pytest

from cayley.lab.recipes.schema import read_recipe
from cayley.lab.tasks import Position
from cayley.lab.training.progress import Progress
from cayley.lab.training.selection import Selection
from cayley.lab.training.timetable import Timetable, schedule_steps

CONTENT: dict[str, Any] = {
    "name": "a",
    "task": {"name": "adding"},
    "model": {"name": "RNN", "hidden": 3},
    "optim": {"name": "SGD", "lr": 1.0},
}


def timetable(step: int, training: dict[str, Any], **evaluation: Any) -> Timetable:
    """After some steps, in epochs of five."""
    recipe = read_recipe(CONTENT | {"training": {"batch": 1} | training, "evaluation": evaluation})
    progress = Progress(step, Position(*divmod(step, 5)))
    return Timetable(recipe, 5, progress, Selection("mse", "lower", "valid"))


@pytest.mark.parametrize(
    ("training", "evaluation", "due"),
    [
        ({"epochs": 2}, {}, [0, 5, 10]),
        ({"epochs": 2}, {"start": False}, [5, 10]),
        ({"steps": 7}, {"every": 3}, [0, 3, 6, 7]),
        ({"steps": 6}, {"every": 3}, [0, 3, 6]),
        ({"steps": 3}, {"every": "epoch"}, [0, 3]),
    ],
)
def test_evaluations(training: dict[str, Any], evaluation: dict[str, Any], due: list[int]) -> None:
    last = 10 if "epochs" in training else training["steps"]
    steps = range(last + 1)
    assert [step for step in steps if timetable(step, training, **evaluation).evaluation_due] == due
    assert [step for step in steps if timetable(step, training).finished] == [last]


def test_an_evaluation_is_done_once() -> None:
    times = timetable(5, {"epochs": 2})
    assert times.evaluation_due
    times.progress.evaluated = 5
    assert not times.evaluation_due


def test_patience_ends_a_run() -> None:
    times = timetable(4, {"epochs": 9, "patience": 2})
    times.selection.stale = 1
    assert not times.finished
    times.selection.stale = 2
    assert times.stopped_early
    assert times.finished
    assert times.evaluation_due


@pytest.mark.parametrize(
    ("training", "log"),
    [
        ({"steps": 9}, 10),
        ({"steps": 9999}, 10),
        ({"epochs": 9000}, 45),
        ({"steps": 9, "log": 7}, 7),
    ],
)
def test_at_most_a_thousand_records(training: dict[str, Any], log: int) -> None:
    assert timetable(0, training).log == log


def test_epochs_have_fractions() -> None:
    assert timetable(7, {"epochs": 9}).epoch == 1.4


@pytest.mark.parametrize(
    ("training", "log"),
    [
        ({"steps": 5}, 10),
        ({"steps": 50_000}, 50),
        ({"epochs": 10_000}, 50),
        ({"steps": 10**13}, 10_000),
        ({"steps": 10**13, "log": 20_000}, 20_000),
    ],
)
def test_losses_that_wait_for_a_record_are_few(training: dict[str, Any], log: int) -> None:
    assert timetable(0, training).log == log


@pytest.mark.parametrize(
    ("training", "every", "steps"),
    [
        ({"epochs": 3}, "epoch", 3),
        ({"epochs": 3}, "step", 15),
        ({"steps": 11}, "epoch", 3),
        ({"steps": 11}, "step", 11),
    ],
)
def test_steps_of_a_schedule(training: dict[str, Any], every: str, steps: int) -> None:
    optim = CONTENT["optim"] | {"schedule": {"every": every}}
    recipe = read_recipe(CONTENT | {"training": {"batch": 1} | training, "optim": optim})
    assert schedule_steps(recipe, 5) == steps
