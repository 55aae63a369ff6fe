"""Several yes-no labels per node: their loss and their score."""

import math

import torch
from torch import Tensor

from cayley.lab.tasks.batch import Batch
from cayley.lab.tasks.metrics import Metric

__all__ = ["label_loss", "mean_roc_auc", "roc_auc"]


def label_loss(output: Tensor, target: Tensor) -> Tensor:
    """Cross entropy of yes-no labels, mean over those that are not NaN.

    Arguments:
        output: Logits, (N, p).
        target: 1, 0, or NaN where nothing is scored, (N, p).

    Example:
        >>> label_loss(torch.zeros(2, 1), torch.tensor([[1.0], [torch.nan]]))
        tensor(0.6931)
    """
    wanted = ~target.isnan()
    losses = torch.nn.functional.binary_cross_entropy_with_logits(
        output, target.nan_to_num(), reduction="none"
    )
    return torch.where(wanted, losses, 0).sum() / wanted.sum()


def mean_roc_auc(rows: Tensor) -> float:
    r"""The area under the receiver operating characteristic, mean over labels.

    .. math::
        \frac{R_1 - n_1 (n_1 + 1) / 2}{n_0 n_1}

    for :math:`n_1` ones, whose ranks among all scores add up to :math:`R_1`, and :math:`n_0` zeros.
    Equal scores share the mean of their ranks.

    A label with only one value is left out, as in the Open Graph Benchmark. If the score of a
    labelled node is NaN, the area is NaN.

    Arguments:
        rows: Scores of p labels and then their values 0 or 1, or NaN where there is none, (N, 2p).

    Example:
        >>> mean_roc_auc(torch.tensor([[0.1, 0.0], [0.7, 1.0], [0.3, 0.0], [0.2, 1.0]]))
        0.75
    """
    from scipy.stats import rankdata

    scores, values = rows.double().chunk(2, 1)
    wanted = ~values.isnan()
    if scores[wanted].isnan().any():
        return math.nan
    areas = []
    for score, value, known in zip(scores.t(), values.t(), wanted.t(), strict=True):
        ones, zeros = (value == 1).sum().item(), (value == 0).sum().item()
        if ones and zeros:
            ranks = torch.from_numpy(rankdata(score[known].cpu().numpy()))
            above = ranks[value[known].cpu() == 1].sum().item() - ones * (ones + 1) / 2
            areas.append(above / (ones * zeros))
    if not areas:
        raise ValueError("expected a label with both values, got none: the area is not defined")
    return sum(areas) / len(areas)


def _scores_and_labels(output: Tensor, batch: Batch) -> Tensor:
    return torch.cat((output, batch.target.to(output)), 1)


roc_auc = Metric("roc_auc", "higher", _scores_and_labels, mean_roc_auc)
