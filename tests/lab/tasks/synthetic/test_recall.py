import pytest
import torch
from torch import Tensor

from cayley.lab.tasks import Batch, Position, score_split
from cayley.lab.tasks.synthetic import Copying
from cayley.lab.tasks.synthetic.recall import one_hot


def test_one_hot_is_that_of_torch() -> None:
    symbols = torch.randint(0, 5, (3, 4))
    expected = torch.nn.functional.one_hot(symbols, 5).float()
    assert torch.equal(one_hot(symbols, 5, torch.float32), expected)


def test_accuracy_counts_the_last_ten_places_alone() -> None:
    task = Copying(T=4, test=30)

    def predict(batch: Batch, state: None) -> tuple[Tensor, None]:
        """Right in eight of the ten last places, wrong in all before."""
        answers = batch.target.clone()
        answers[:-10] = 1
        answers[-2:] = answers[-2:] % 8 + 1
        return one_hot(answers, 9), None

    assert score_split(task, predict, "test", 7)["accuracy"] == pytest.approx(0.8)


def test_naive_is_a_distribution() -> None:
    task = Copying(T=4)
    p = task.naive(task.batch("test", 3, Position())).softmax(-1)
    torch.testing.assert_close(p.sum(-1), torch.ones(24, 3))
    assert (p[:-10, :, 0] == 1).all()
    torch.testing.assert_close(p[-10:, :, 1:], torch.full((10, 3, 8), 1 / 8))
