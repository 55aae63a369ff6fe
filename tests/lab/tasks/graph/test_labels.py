import math

import pytest
import torch

from cayley.lab.tasks.graph.labels import label_loss, mean_roc_auc


def test_label_loss_is_its_formula() -> None:
    output, target = torch.randn(6, 3), torch.randint(0, 2, (6, 3)).double()
    target[::2] = torch.nan
    terms = [
        -math.log(p if y else 1 - p)
        for p, y in zip(output.sigmoid().flatten().tolist(), target.flatten().tolist(), strict=True)
        if not math.isnan(y)
    ]
    assert float(label_loss(output, target)) == pytest.approx(sum(terms) / len(terms))


def test_area_is_the_share_of_pairs_in_order() -> None:
    """Mann and Whitney: a positive above a negative counts 1, a tie 1/2."""
    scores = torch.randint(0, 6, (40, 2)).double() / 5
    values = torch.randint(0, 2, (40, 2)).double()
    expected = []
    for label in range(2):
        positive = scores[values[:, label] == 1, label]
        negative = scores[values[:, label] == 0, label]
        difference = positive.unsqueeze(1) - negative
        expected.append(float((difference.sign() + 1).mean()) / 2)
    rows = torch.cat((scores, values), 1)
    assert mean_roc_auc(rows) == pytest.approx(sum(expected) / 2)
    # nodes without labels and labels without two values do not count
    nothing = torch.full((3, 4), torch.nan)
    assert mean_roc_auc(torch.cat((rows, nothing))) == pytest.approx(sum(expected) / 2)
    rows[:, 3] = 1.0
    assert mean_roc_auc(rows) == pytest.approx(expected[0])
    rows[:, 2] = 0.0
    with pytest.raises(ValueError, match="expected a label with both values"):
        mean_roc_auc(rows)


def test_each_label_has_its_own_nodes() -> None:
    """A node of which one label is not known counts for the others."""
    rows = torch.tensor([[0.1, 0.2, 0, 1], [0.9, 0.3, 1, math.nan], [0.3, 0.1, 0, 0]])
    rows = torch.cat((rows, torch.tensor([[0.2, 0.5, 1, 1]])))
    assert mean_roc_auc(rows) == pytest.approx((0.75 + 1) / 2)


def test_answers_that_are_no_numbers_have_no_area() -> None:
    rows = torch.tensor([[math.nan, 0.0], [0.2, 1.0], [0.1, 0.0]])
    assert math.isnan(mean_roc_auc(rows))
    # where no answer is wanted, none is looked at
    rows[0, 1] = math.nan
    assert mean_roc_auc(rows) == 1.0
