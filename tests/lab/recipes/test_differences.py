from dataclasses import replace

from lab.report.folders import make_recipe

from cayley.lab.recipes import find_recipe
from cayley.lab.recipes.differences import differences, distinguish, edits, flatten


def test_settings_that_differ_are_named() -> None:
    one = find_recipe("quickstart").recipe()
    other = find_recipe("quickstart").recipe(overrides=["model.hidden=64", "bnp.eps=0.1"])
    assert differences(one, one) == []
    assert differences(other, one) == ["model.hidden = 64, not 80", "bnp.eps = 0.1, not none"]
    assert differences(one, other) == ["model.hidden = 80, not 64", "bnp.eps = none, not 0.1"]
    assert flatten(other)["model.hidden"] == 64


def test_what_a_recipe_is_about_is_part_of_its_edits() -> None:
    one = find_recipe("quickstart").recipe()
    other = replace(one, note="Mine.", training=replace(one.training, batch=7))
    assert edits(other, one) == [
        f"training.batch = 7, not {one.training.batch}",
        f"note = Mine., not {one.note}",
    ]


def test_recipes_of_one_name_are_told_apart() -> None:
    lstm = {"name": "LSTM", "hidden": 8}
    recipes = [make_recipe("mine", "mine", lstm | more) for more in ({}, {"forget_bias": 1.0})]
    assert distinguish(recipes) == [
        ("model.forget_bias = none",),
        ("model.forget_bias = 1.0",),
    ]
    assert distinguish(recipes[:1]) == [()]
