import pytest
import torch
from torch import Tensor

from cayley.lab.tasks import Batch, score_split
from cayley.lab.tasks.synthetic import Adding


def test_an_empty_split_has_no_scores() -> None:
    task = Adding(valid=0)
    with pytest.raises(ValueError, match="expected examples in the split 'valid'"):
        score_split(task, lambda batch, state: (task.naive(batch), None), "valid", 10)


def test_evaluation_records_no_gradient() -> None:
    task = Adding(T=4, test=6)
    weight = torch.ones(1, requires_grad=True)

    def predict(batch: Batch, state: None) -> tuple[Tensor, None]:
        output = weight * batch.target
        assert not output.requires_grad
        return output, None

    assert score_split(task, predict, "test", 4) == {"mse": 0.0}


def test_evaluation_of_chosen_metrics() -> None:
    task = Adding(T=4, test=6)
    assert score_split(task, lambda b, s: (task.naive(b), None), "test", 4, metrics=()) == {}
