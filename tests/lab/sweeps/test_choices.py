import pytest

from cayley.lab.errors import RecipeError
from cayley.lab.sweeps import grid, make_recipe, read_space, write_setting
from cayley.lab.sweeps.choices import probes

HEAD = 'recipe = "quickstart"\nmetric = "valid_mse"\ntrials = 4\n'


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
