import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from cayley.lab.tasks.frequencies import count_classes, frequency_logits, frequency_scores


def test_counts() -> None:
    target = torch.tensor([[0, 2, 2], [-100, 4, 2]])
    assert count_classes(target, 6).tolist() == [1, 0, 3, 0, 1, 0]


def test_scores_are_those_of_the_logits() -> None:
    training, target = torch.tensor([50, 3, 0, 20]), torch.randint(0, 4, (1000,))
    logits = frequency_logits(training)
    scores = frequency_scores(training, count_classes(target, 4))
    entropy = float(cross_entropy(logits.expand(1000, 4), target))
    assert scores["cross_entropy"] == pytest.approx(entropy)
    assert scores["bpc"] == pytest.approx(entropy / math.log(2))
    assert scores["perplexity"] == pytest.approx(math.exp(entropy))
    assert scores["accuracy"] == pytest.approx(float((target == 0).double().mean()))
    torch.testing.assert_close(logits.exp().sum(), torch.tensor(1.0))
    assert logits.isfinite().all()


def test_own_frequencies_give_the_entropy() -> None:
    counts = torch.tensor([10**9, 3 * 10**9])
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert frequency_scores(counts, counts)["cross_entropy"] == pytest.approx(entropy)
