import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cayley.lab.errors import NotFinite
from cayley.lab.recipes.schema import Recipe, read_recipe
from cayley.lab.tasks import SPLITS, make_task
from cayley.lab.training.evaluation import score_model


class Constant(nn.Module):
    """Always the same answer."""

    def __init__(self, answer: float) -> None:
        super().__init__()
        self.answer = answer
        self.modes: list[bool] = []

    def forward(self, input: Tensor, state: Any = None) -> tuple[Tensor, None]:
        self.modes.append(self.training)
        return torch.full((input.shape[1], 1), self.answer), None


@pytest.fixture
def recipe() -> Recipe:
    return read_recipe(
        {
            "name": "a",
            "task": {"name": "adding"},
            "model": {"name": "RNN", "hidden": 3},
            "optim": {"name": "SGD", "lr": 1.0},
            "training": {"batch": 7, "steps": 1},
        }
    )


RUN: dict[str, Any] = {"seed": 3, "device": torch.device("cpu"), "dtype": torch.float64}


def test_the_score_of_a_constant(recipe: Recipe) -> None:
    """Always 1 + c has the error 1/6 + c² in the mean."""
    task = make_task("adding", T=10, test=40_000)
    model = Constant(1.5)
    calls: list[None] = []
    mse = score_model(recipe, task, model, "test", **RUN, between=lambda: calls.append(None))["mse"]
    # the standard error of (x − 1.5)² over 40,000 sums x of two uniform numbers
    assert abs(mse - (1 / 6 + 1 / 4)) < 4 * 0.47 / 200
    assert len(calls) == len(model.modes) == math.ceil(40_000 / 7)
    assert not any(model.modes)
    assert model.training


def test_training_is_scored_on_what_the_run_was_trained_on(recipe: Recipe) -> None:
    """The other splits are the same for all runs."""

    class Recording(Constant):
        def forward(self, input: Tensor, state: Any = None) -> tuple[Tensor, None]:
            self.sums = input.sum(0)
            return super().forward(input, state)

    task = make_task("adding", T=10, train=7, valid=7, test=7)
    for split in SPLITS:
        for seed in (3, 4):
            model = Recording(1.0)
            score_model(recipe, task, model, split, **RUN | {"seed": seed})
            drawn = seed if split == "train" else 0
            (batch,) = task.batches(split, 7, seed=drawn, dtype=torch.float64)
            assert isinstance(batch.input, Tensor)
            torch.testing.assert_close(model.sums, batch.input.sum(0))


def test_scores_must_be_finite(recipe: Recipe) -> None:
    task = make_task("adding", T=10, test=7)
    with pytest.raises(NotFinite, match="test mse is nan"):
        score_model(recipe, task, Constant(math.nan), "test", **RUN)


def test_a_perplexity_without_bounds(recipe: Recipe) -> None:
    class Sure(Constant):
        def forward(self, input: Tensor, state: Any = None) -> tuple[Tensor, None]:
            return torch.eye(10_000)[0].mul(1e6).expand(*input.shape, -1), None

    with pytest.raises(NotFinite, match="a metric of the split test is infinite"):
        score_model(recipe, make_task("words").tiny(), Sure(0.0), "test", **RUN)
