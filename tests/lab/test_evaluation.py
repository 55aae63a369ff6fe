import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cayley.lab.errors import NotFinite
from cayley.lab.evaluation import score
from cayley.lab.schema import Recipe, read_recipe
from cayley.lab.tasks import make


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


CPU = {"device": torch.device("cpu"), "dtype": torch.float64}


def test_the_score_of_a_constant(recipe: Recipe) -> None:
    """Always 1 + c has the error 1/6 + c² in the mean."""
    task = make("adding", T=10, test=40_000)
    model = Constant(1.5)
    calls: list[None] = []
    mse = score(recipe, task, model, "test", **CPU, between=lambda: calls.append(None))["mse"]
    # the standard error of (x − 1.5)² over 40,000 sums x of two uniform numbers
    assert abs(mse - (1 / 6 + 1 / 4)) < 4 * 0.47 / 200
    assert len(calls) == len(model.modes) == math.ceil(40_000 / 7)
    assert not any(model.modes)
    assert model.training


def test_scores_must_be_finite(recipe: Recipe) -> None:
    task = make("adding", T=10, test=7)
    with pytest.raises(NotFinite, match="test mse is nan"):
        score(recipe, task, Constant(math.nan), "test", **CPU)


def test_a_perplexity_without_bounds(recipe: Recipe) -> None:
    class Sure(Constant):
        def forward(self, input: Tensor, state: Any = None) -> tuple[Tensor, None]:
            return torch.eye(10_000)[0].mul(1e6).expand(*input.shape, -1), None

    with pytest.raises(NotFinite, match="a metric of the split test is infinite"):
        score(recipe, make("words").tiny(), Sure(0.0), "test", **CPU)
