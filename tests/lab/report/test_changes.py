from pathlib import Path
from typing import Any

import pytest
from lab.report.folders import make_recipe, write_run

from cayley.lab.recipes import find
from cayley.lab.report.changes import find_changes, tell_apart
from cayley.lab.report.reading import read_runs

SCORES: dict[str, Any] = {
    "scores": {"mse": 0.5},
    "start": {"mse": 1.0},
    "baseline": {"mse": 1.0},
}


def changes(folder: Path) -> tuple[str, ...]:
    return find_changes(read_runs([folder])[0][0])


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ((), ()),
        (("model.hidden=64",), ("model.hidden = 64, not 170",)),
        # the same as in the recipe is no change
        (("model.hidden=170",), ()),
        (("optim.recurrent=SGD",), ("optim.recurrent = SGD, not ",)),
        (("bnp.eps=0.1",), ("bnp.eps = 0.1, not none",)),
        (("optim.options.betas=[0.8, 0.9]",), ("optim.options.betas = [0.8, 0.9], not none",)),
        (
            ("training.steps=2", "task.T=20"),
            ("task.T = 20, not 100", "training.steps = 2, not 1500"),
        ),
    ],
)
def test_against_the_recipe(
    tmp_path: Path, overrides: tuple[str, ...], words: tuple[str, ...]
) -> None:
    recipe = find("quickstart").recipe(overrides=overrides)
    assert changes(write_run(tmp_path, recipe, overrides=overrides, **SCORES)) == words


def test_against_nothing(tmp_path: Path) -> None:
    recipe = make_recipe("mine", "mine", {"name": "LSTM", "hidden": 8})
    assert changes(write_run(tmp_path, recipe, overrides=("model.hidden=8",), **SCORES)) == (
        "model.hidden=8",
    )


def test_what_no_recipe_says(tmp_path: Path) -> None:
    recipe = find("quickstart").recipe()
    machine = {"precision": "bf16-mixed"}
    folder = write_run(tmp_path, recipe, tiny=True, machine=machine, **SCORES)
    assert changes(folder) == ("a few made-up examples", "precision bf16-mixed")


def test_recipes_of_one_name_are_told_apart() -> None:
    lstm = {"name": "LSTM", "hidden": 8}
    recipes = [make_recipe("mine", "mine", lstm | more) for more in ({}, {"forget_bias": 1.0})]
    assert tell_apart(recipes) == [
        ("model.forget_bias = none",),
        ("model.forget_bias = 1.0",),
    ]
    assert tell_apart(recipes[:1]) == [()]
