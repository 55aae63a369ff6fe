import math
import tomllib
from typing import Any

import pytest
from lab.bounds import unbounded

from cayley.lab.errors import RecipeError
from cayley.lab.recipes import schema
from cayley.lab.recipes.schema import Recipe, read_recipe, write_recipe

CONTENT: dict[str, Any] = {
    "name": "papers/row-1.5",
    "task": {"name": "copying", "T": 100},
    "model": {"name": "ENRNN", "hidden": [10, 6], "coupled": False},
    "optim": {
        "name": "Adam",
        "lr": 1e-3,
        "recurrent": "RMSpropTF",
        "recurrent_lr": 1e-5,
        "schedule": {"name": "MultiStepLR", "milestones": [80, 90], "gamma": 0.1},
    },
    "training": {"batch": 20, "steps": 4000, "clip_norm": 1},
    "evaluation": {"every": 200, "splits": ["test"], "select": "last"},
    "bnp": {"eps": 0.1},
    "reported": ["a", "b"],
    "unstated": ["training.batch", "task.T", "optim.lr", "seed"],
}


def test_written_and_read_again_it_is_the_same() -> None:
    recipe = read_recipe(CONTENT)
    again = read_recipe(tomllib.loads(write_recipe(recipe)))
    assert again == recipe
    assert recipe.task.settings == {"T": 100}
    assert recipe.model.options == {"coupled": False}
    assert recipe.optim.schedule.options == {"milestones": [80, 90], "gamma": 0.1}
    assert recipe.optim.phase_lr is None
    assert recipe.model.hidden == (10, 6)


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        ("training", {"epochs": 3}, "either epochs or steps"),
        ("training", {"steps": 0}, "either epochs or steps"),
        ("training", {"batch": 0}, "training.batch"),
        ("training", {"epochs": -1}, "training.epochs: expected an integer from 0 to .*, got -1"),
        ("training", {"steps": 10**20}, "training.steps: expected an integer from 0 to"),
        ("training", {"log": 10**9}, "training.log: expected an integer from 0 to 1,000,000"),
        ("training", {"clip_norm": math.nan}, "training.clip_norm: expected a number of at least"),
        ("evaluation", {"batch": -3}, "evaluation.batch: expected an integer from 0 to .*, got -3"),
        ("model", {"hidden": 0}, "model.hidden: expected an integer from 1 to 1,000,000 or a list"),
        (
            "model",
            {"hidden": [10, 10**9]},
            "model.hidden: expected an integer from 1 to 1,000,000 or",
        ),
        ("model", {"layers": 0}, "model.layers: expected an integer from 1 to"),
        ("model", {"dropout": 1.0}, "model.dropout: expected a number from 0 to less than 1"),
        ("model", {"embedding": -1}, "model.embedding: expected an integer from 0 to"),
        ("optim", {"lr": math.inf}, "optim.lr: expected a number of at least 0, got inf"),
        ("optim", {"weight_decay": -1}, "optim.weight_decay: expected a number of at least 0"),
        ("optim", {"recurrent_lr": -1}, "optim.recurrent_lr: expected a number of at least 0 or n"),
        ("evaluation", {"every": 0}, "evaluation.every"),
        ("evaluation", {"select": "valid"}, "evaluation.select"),
        ("optim", {"learning_rate": 1.0}, "unknown key optim.learning_rate"),
    ],
)
def test_settings_must_fit_together(section: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        read_recipe(CONTENT | {section: CONTENT[section] | change})
    assert str(caught.value).startswith("papers/row-1.5: ")


@pytest.mark.parametrize("change", [{"seed": -1}, {"seed": 10**20}, {"seeds": 0}])
def test_seeds_have_a_range(change: dict[str, int]) -> None:
    with pytest.raises(RecipeError, match=f"{next(iter(change))}: expected an integer from"):
        read_recipe(CONTENT | change)


def test_every_setting_has_its_words_its_range_or_a_reason() -> None:
    sections = [value for name, value in vars(schema).items() if name.endswith("Settings")]
    assert len(sections) == 6
    assert [name for kind in (*sections, Recipe) for name in unbounded(kind)] == []


@pytest.mark.parametrize("name", ["", "Upper", "a//b", "../up", "a/", "/a", "a b", "a/../b", "a/."])
def test_names_are_safe_paths(name: str) -> None:
    with pytest.raises(RecipeError, match="name: expected"):
        read_recipe(CONTENT | {"name": name})


def test_unstated_keys_exist() -> None:
    for key in ("training.batchs", "task.TT", "nothing"):
        with pytest.raises(
            RecipeError, match=f"unstated: expected keys of this recipe, got '{key}"
        ):
            read_recipe(CONTENT | {"unstated": [key]})
