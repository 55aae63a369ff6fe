import re

import pytest

from cayley.lab.errors import RecipeError
from cayley.lab.sweeps import read_space

HEAD = 'recipe = "quickstart"\nmetric = "valid_mse"\ntrials = 4\n'


def read(text: str) -> list[str]:
    return [one.key for one in read_space(text, "mine").parameters]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "mine: missing key recipe"),
        ('recipe = "quickstart"', "mine: missing key metric"),
        ("recipe = ", "mine: Invalid value"),
        (HEAD, "parameters: expected at least one key of the recipe, got none"),
        (HEAD + "[parameters]\noptim.lr = 3", "parameters.optim.lr: expected a list, or a range"),
        (HEAD + "[parameters]\noptim.lr = { low = 1 }", "expected values, or both low and high"),
        (HEAD + "[parameters]\noptim.lr = { lo = 1, high = 2 }", "did you mean parameters.optim"),
        (HEAD + "[parameters]\na = { low = 2, high = 1 }", "expected low to be less than high"),
        (HEAD + "[parameters]\na = { low = 0, high = 1, log = true }", "low to be positive"),
        (HEAD + "[parameters]\na = { low = 1, high = inf }", "low to be less than high"),
        (HEAD + "[parameters]\na = { low = 0, high = 10, step = 3 }", "the last value is 9"),
        (HEAD + "[parameters]\na = { low = 0, high = 10, step = 0 }", "a step of more than 0"),
        (HEAD + "[parameters]\na = { low = 1, high = 9, step = 1, log = true }", "got both"),
        (HEAD + "[parameters]\na = { values = [1], low = 1 }", "values, or low and high, got both"),
        (HEAD + "[parameters]\na = [1, 2, 1]", "expected values that differ, got 1 twice"),
        (HEAD + "[parameters]\na = { values = [1], when = { b = 2 } }", "got 'b'"),
        (
            HEAD + "[parameters]\nb = [1]\na = { values = [1], when = { b = 2 } }",
            "expected values that b has, 1, got 2",
        ),
        (
            HEAD + "[parameters]\na = { values = [1], when = { b = 1 } }\n"
            "b = { values = [1], when = { a = 1 } }",
            "expected conditions without a cycle, got one of a, b",
        ),
        (HEAD + 'sampler.name = "tp"\n[parameters]\na = [1]', "sampler.name: expected 'tpe' or"),
        (HEAD + 'pruner.name = "mean"\n[parameters]\na = [1]', "pruner.name: expected 'none' or"),
        (
            HEAD + 'sampler.name = "grid"\n[parameters]\na = { low = 0.5, high = 1 }',
            "expected a list or a range with a step, as the sampler is grid",
        ),
        (
            HEAD.replace("valid_mse", "mse") + "[parameters]\na = [1]",
            "such as valid_mse, got 'mse'",
        ),
        (HEAD.replace("trials = 4", "") + "[parameters]\na = [1]", "missing key trials"),
        (HEAD.replace("4", "-1") + "[parameters]\na = [1]", "trials: expected an integer from 0"),
        (HEAD + 'direction = "up"\n[parameters]\na = [1]', "direction: expected"),
        (HEAD + 'set = ["a=2"]\n[parameters]\na = [1]', "set: expected settings that are not"),
        (HEAD + 'name = "other"\n[parameters]\na = [1]', "name: expected no such key"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(text: str, words: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(words)):
        read_space(text, "mine")


def test_settings_of_all_trials_are_not_searched() -> None:
    text = "[parameters]\na = { values = [1], when = { b = 1 } }\nb = [1, 2]"
    space = read_space(HEAD + text, "mine")
    # trials without b = 1 have the value that is set
    assert space.choose(["a=3", "optim.lr=1"]).set == ("a=3", "optim.lr=1")
    with pytest.raises(RecipeError, match="every trial has a value of b"):
        space.choose(["b=2"])


def test_keys_with_and_without_quotation_marks() -> None:
    assert read(HEAD + '[parameters]\n"optim.lr" = [1, 2]\nmodel.hidden = [1]') == [
        "optim.lr",
        "model.hidden",
    ]


def test_parameters_come_after_their_conditions() -> None:
    text = "[parameters]\na = { values = [1], when = { b = [1, 2] } }\nb = [1, 2, 3]"
    assert read(HEAD + text) == ["b", "a"]


@pytest.mark.parametrize(
    ("span", "values"),
    [
        ("low = 0.1, high = 0.3, step = 0.1", (0.1, 0.2, 0.3)),
        ("low = 0.1, high = 0.7, step = 0.2", (0.1, 0.3, 0.5, 0.7)),
        # high − low is less than the step in binary
        ("low = 0.1, high = 0.3, step = 0.2", (0.1, 0.3)),
        ("low = 1e-5, high = 3e-5, step = 1e-5", (1e-5, 2e-5, 3e-5)),
        ("low = -0.3, high = 0.3, step = 0.3", (-0.3, 0.0, 0.3)),
        ("low = 0, high = 1, step = 0.5", (0.0, 0.5, 1.0)),
        ("low = 2, high = 6, step = 2", (2, 4, 6)),
        ("low = 2, high = 4", (2, 3, 4)),
    ],
)
def test_steps_are_counted_in_decimal(span: str, values: tuple[float, ...]) -> None:
    (one,) = read_space(HEAD + f"[parameters]\na = {{ {span} }}", "mine").parameters
    assert one.all_values == values
    assert [*map(type, one.all_values)] == [*map(type, values)]
    assert [one.nearest(value + 1e-9) for value in values] == [*values]


def test_a_condition_may_be_any_step() -> None:
    text = "[parameters]\nb = { low = 0.1, high = 0.5, step = 0.1 }\n"
    assert read(HEAD + text + "a = { values = [1], when = { b = 0.3 } }") == ["b", "a"]
