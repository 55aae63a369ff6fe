import pytest
import torch

from cayley.lab.tasks import Adding, Position, evaluate
from cayley.lab.tasks.task import following


def test_following_counts_epochs() -> None:
    positions = [Position()]
    for _ in range(7):
        positions.append(following(positions[-1], 3))
    assert positions == [Position(e, b) for e in range(3) for b in range(3)][:8]
    assert Position(0, 2) < Position(1, 0)


def test_an_empty_split_has_no_batches_and_no_scores() -> None:
    task = Adding(valid=0)
    assert list(task.batches("valid", 10, epochs=None)) == []
    with pytest.raises(ValueError, match="expected examples in the split 'valid'"):
        evaluate(task, lambda batch, state: (task.naive(batch), None), "valid", 10)


def test_evaluation_records_no_gradient() -> None:
    task = Adding(T=4, test=6)
    weight = torch.ones(1, requires_grad=True)

    def predict(batch, state):
        output = weight * batch.target
        assert not output.requires_grad
        return output, None

    assert evaluate(task, predict, "test", 4) == {"mse": 0.0}


def test_evaluation_of_chosen_metrics() -> None:
    task = Adding(T=4, test=6)
    assert evaluate(task, lambda b, s: (task.naive(b), None), "test", 4, metrics=()) == {}
