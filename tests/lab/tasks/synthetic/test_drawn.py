import math
from typing import Any

import pytest
import torch
from torch import Tensor

from cayley.lab.errors import RecipeError
from cayley.lab.tasks import SPLITS, DrawnTask, Draws, score_split


class Mean(DrawnTask):
    """The mean of numbers, after the last."""

    input_size = output_size = 1
    answers = "last"

    def draw(self, draws: Draws) -> tuple[Tensor, Tensor]:
        x = draws.uniform(self.T, 1)
        return x, x.mean(0)


class Parity(DrawnTask):
    """The parity of the bits so far, at each step but the first."""

    input_size = 1
    output_size = 2
    answers = "each"

    def draw(self, draws: Draws) -> tuple[Tensor, Tensor]:
        bits = draws.integers(2, self.T)
        target = bits.cumsum(0) % 2
        target[0] = -100
        return bits.unsqueeze(-1).to(torch.get_default_dtype()), target


@pytest.mark.parametrize("task", [Mean(T=9, train=60), Parity(T=9, train=60)], ids=str)
def test_batches_are_those_of_any_task(task: DrawnTask) -> None:
    batches = list(task.batches("train", 25))
    inputs = [batch.input for batch in batches if isinstance(batch.input, Tensor)]
    assert [x.shape for x in inputs] == [(9, B, 1) for B in (25, 25, 10)]
    again = task.batch("train", 25, batches[1].position)
    assert isinstance(again.input, Tensor)
    assert torch.equal(again.input, inputs[1])
    assert torch.equal(again.target, batches[1].target)
    few = task.tiny()
    for split in SPLITS:
        scored = score_split(few, lambda batch, state: (few.naive(batch), None), split, 7)
        assert scored == pytest.approx(few.baseline(split))


def test_the_naive_predictor_knows_the_mean_or_the_frequencies() -> None:
    mean = Mean(T=20)
    assert mean.metrics[0].name == "mse"
    assert mean.baseline("test")["mse"] == pytest.approx(1 / 12 / 20, rel=0.1)
    parity = Parity(T=20)
    assert [metric.name for metric in parity.metrics] == ["accuracy", "cross_entropy"]
    assert parity.baseline("test")["cross_entropy"] == pytest.approx(math.log(2), rel=1e-3)


def test_what_is_drawn_is_what_was_promised() -> None:
    """A loss would accept some of these, and give numbers without a meaning."""
    mistakes: dict[str, dict[str, Any]] = {
        'answers: expected "last" or "each", got \'lst\'': {"answers": "lst"},
        r"expected numbers \(4, 3\) as target": {"output_size": 3},
        r"expected numbers \(20, 4, 1\) as target.*got \(4, 1\)": {"answers": "each"},
        r"expected numbers \(4, 1\) as target.*got \(4,\)": {
            "draw": lambda self, draws: (draws.uniform(self.T, 1), draws.uniform())
        },
        r"expected input \(T, B, input_size\)": {
            "draw": lambda self, draws: (draws.uniform(1), draws.uniform(1))
        },
        "expected classes 0, …, 0, since output_size = 1, .*got 3": {
            "draw": lambda self, draws: (draws.uniform(self.T, 1), torch.full((4,), 3))
        },
        "or classes in torch.int64, as target, got torch.bool": {
            "draw": lambda self, draws: (draws.uniform(self.T, 1), torch.ones(4) > 0)
        },
        "expected floating-point input, got torch.int64": {
            "draw": lambda self, draws: (draws.integers(2, self.T, 1), torch.zeros(4).long())
        },
        "expected input and target, two tensors, got a Tensor": {
            "draw": lambda self, draws: draws.uniform(self.T, 1)
        },
    }
    for message, members in mistakes.items():
        task: Any = type("Wrong", (Mean,), members)(T=20)
        with pytest.raises(RecipeError, match=message):
            task.examples("train", torch.arange(4), 0, torch.float32)
