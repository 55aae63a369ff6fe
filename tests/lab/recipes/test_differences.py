from lab.report.folders import make_recipe

from cayley.lab.recipes import find_recipe
from cayley.lab.recipes.differences import differences, distinguish, flatten


def test_settings_that_differ_are_named() -> None:
    one = find_recipe("quickstart").recipe()
    other = find_recipe("quickstart").recipe(overrides=["model.hidden=64", "bnp.eps=0.1"])
    assert differences(one, one) == []
    assert differences(other, one) == ["model.hidden = 64, not 80", "bnp.eps = 0.1, not none"]
    assert differences(one, other) == ["model.hidden = 80, not 64", "bnp.eps = none, not 0.1"]
    assert flatten(other)["model.hidden"] == 64


def test_recipes_of_one_name_are_told_apart() -> None:
    lstm = {"name": "LSTM", "hidden": 8}
    recipes = [make_recipe("mine", "mine", lstm | more) for more in ({}, {"forget_bias": 1.0})]
    assert distinguish(recipes) == [
        ("model.forget_bias = none",),
        ("model.forget_bias = 1.0",),
    ]
    assert distinguish(recipes[:1]) == [()]
