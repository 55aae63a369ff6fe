import re
from pathlib import Path

import pytest

from cayley.lab.errors import RecipeError
from cayley.lab.sweeps import find_space, grid, make_recipe, read_space, write_setting
from cayley.lab.sweeps.choices import probes

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
            "expected conditions without a circle, got one of a, b",
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
        (HEAD + 'name = "other"\n[parameters]\na = [1]', "name: expected none"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(text: str, words: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(words)):
        read_space(text, "mine")


def test_keys_with_and_without_quotation_marks() -> None:
    assert read(HEAD + '[parameters]\n"optim.lr" = [1, 2]\nmodel.hidden = [1]') == [
        "optim.lr",
        "model.hidden",
    ]


def test_parameters_come_after_their_conditions() -> None:
    text = "[parameters]\na = { values = [1], when = { b = [1, 2] } }\nb = [1, 2, 3]"
    assert read(HEAD + text) == ["b", "a"]


def test_every_choice_of_a_grid() -> None:
    text = """
    sampler.name = "grid"
    [parameters]
    a = [1, 2]
    b = { low = 0.0, high = 0.3, step = 0.1, when = { a = 2 } }
    c = { low = 3, high = 4, when = { b = 0.0 } }
    """
    choices = grid(read_space(HEAD + text, "mine"))
    assert [one["a"] for one in choices] == [1, 2, 2, 2, 2, 2]
    assert [one["b"] for one in choices if "b" in one] == pytest.approx([0, 0, 0.1, 0.2, 0.3])
    # a condition on what is not there is not met
    assert [one.get("c") for one in choices] == [None, 3, 4, None, None, None]


def test_a_grid_without_end_is_refused() -> None:
    text = 'sampler.name = "grid"\n[parameters]\n' + "\n".join(
        f"a{k} = {{ low = 1, high = 100 }}" for k in range(4)
    )
    with pytest.raises(RecipeError, match="at most 1,000,000 choices, got 100,000,000"):
        grid(read_space(HEAD + text, "mine"))


def test_each_end_is_tried_with_its_conditions() -> None:
    text = """
    [parameters]
    a = ["x", "y"]
    b = { low = 1, high = 5, when = { a = "y" } }
    """
    found = list(probes(read_space(HEAD + text, "mine")))
    assert found == [
        ("a", {"a": "x"}),
        ("a", {"a": "y", "b": 1}),
        ("b", {"a": "y", "b": 1}),
        ("b", {"a": "y", "b": 5}),
    ]


@pytest.mark.parametrize(
    "value", [1, 0.1, 1e-5, True, "Adam", "true", "a b", 'say "ä"', [5, 4], {"eps": 0.5, "a": [1]}]
)
def test_settings_are_read_as_they_were_written(value: object) -> None:
    from cayley.lab.recipes import parse_override

    assert parse_override(write_setting("model.key", value)) == {"model": {"key": value}}


def test_a_recipe_of_a_choice_counts_steps_or_epochs() -> None:
    from cayley.lab.recipes import find_recipe, write_recipe

    base = write_recipe(find_recipe("scornn/mnist-170").recipe())
    recipe = make_recipe(base, {"training.steps": 7, "model.hidden": 5})
    assert (recipe.training.steps, recipe.training.epochs) == (7, 0)
    # it is another network than that of the paper
    assert recipe.parameters == 0


def test_a_recipe_beside_the_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cayley.lab.recipes import find_recipe, write_recipe

    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "own.toml").write_text(write_recipe(find_recipe("quickstart").recipe()))
    text = HEAD.replace("quickstart", "own.toml") + "[parameters]\noptim.lr = [1]"
    (tmp_path / "place" / "mine.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    space = find_space("place/mine.toml")
    assert space.name == "mine"
    assert space.base().task.name == "adding"


@pytest.mark.parametrize("name", ["scornn-mnits", "none.toml"])
def test_a_space_that_is_not_there(name: str) -> None:
    with pytest.raises(RecipeError, match=r"did you mean scornn-mnist|could not read none\.toml"):
        find_space(name)
