import pytest

from cayley.lab.recipes import find_recipe
from cayley.lab.training import RunSettings, estimate_run


@pytest.mark.parametrize(
    ("changes", "steps", "evaluations"),
    [
        (["training.steps=10", "evaluation.every=4"], 10, 4),
        (["training.steps=10", "evaluation.every=5", "evaluation.start=false"], 10, 2),
        # the tiny task has 40 examples
        (
            [
                "training.steps=0",
                "training.epochs=3",
                "training.batch=20",
                "evaluation.every=epoch",
            ],
            6,
            4,
        ),
    ],
)
def test_steps_and_evaluations_are_those_of_the_run(
    changes: list[str], steps: int, evaluations: int
) -> None:
    recipe = find_recipe("quickstart").recipe(overrides=["model.hidden=4", *changes])
    found = estimate_run(recipe, RunSettings(tiny=True))
    assert (found.steps, found.evaluations) == (steps, evaluations)
    assert found.step_seconds > 0
    assert found.seconds > steps * found.step_seconds
