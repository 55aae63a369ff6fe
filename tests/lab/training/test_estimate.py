import pytest

from cayley.lab.errors import RecipeError
from cayley.lab.recipes import Recipe, find_recipe
from cayley.lab.training import Estimate, RunSettings, estimate, estimate_run, estimate_runs


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


def recipe(*changes: str) -> Recipe:
    return find_recipe("quickstart").recipe(overrides=["model.hidden=4", *changes])


def test_what_time_does_not_suffice_for_is_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least work is measured; ten times the batch, or more epochs, take ten times as long."""
    measured = []

    def measure(one: Recipe, *_: object) -> Estimate:
        measured.append(one.training.batch)
        return Estimate(100, 1e-3, 10, 0.5)

    monkeypatch.setattr(estimate, "_estimate", measure)
    steps = ("training.steps=100", "evaluation.every=50")
    recipes = [
        recipe("training.batch=40", *steps),
        recipe("training.batch=4", *steps),
        recipe("training.batch=4", "training.steps=700", "evaluation.every=50", "optim.lr=0.1"),
    ]
    first, second, third = estimate_runs(recipes, RunSettings(tiny=True), seconds=0.0)
    assert measured == [4]
    assert isinstance(first, Estimate)
    assert (first.like, first.steps, first.evaluations) == (1, 100, 3)
    assert first.step_seconds == pytest.approx(1e-2)
    assert second == Estimate(100, 1e-3, 10, 0.5)
    assert third == Estimate(700, 1e-3, 15, 0.5, like=1)
    assert measured == [4]
    measured.clear()
    estimate_runs(recipes, RunSettings(tiny=True), seconds=60.0)
    assert measured == [4, 40]


def test_the_time_of_a_run_that_is_done_serves_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "_estimate", None)
    recipes = [recipe("training.steps=100"), recipe("training.steps=300")]
    settings = RunSettings(tiny=True)
    done, longer = estimate_runs(recipes, settings, seconds=0.0, known={0: (5.0, 1.0)})
    assert isinstance(done, Estimate)
    assert isinstance(longer, Estimate)
    assert done.seconds == pytest.approx(6.0)
    assert longer.like == 0
    assert longer.steps * longer.step_seconds == pytest.approx(15.0)


def test_what_cannot_run_says_why_and_does_not_stop_the_others() -> None:
    recipes = [recipe("model.name=NoSuchNetwork"), recipe()]
    wrong, right = estimate_runs(recipes, RunSettings(tiny=True), seconds=0.0)
    assert isinstance(wrong, RecipeError)
    assert isinstance(right, Estimate)
