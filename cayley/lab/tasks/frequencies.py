"""The predictor that knows only the frequency of each class."""

import math

import torch
from torch import Tensor

from cayley.lab.tasks.metrics import IGNORED

__all__ = ["count_classes", "frequency_logits", "frequency_scores"]


def count_classes(target: Tensor, n: int) -> Tensor:
    """How often each of n classes occurs, int64, (n).

    Example:
        >>> count_classes(torch.tensor([2, 0, 2, -100]), 3)
        tensor([1, 0, 2])
    """
    return torch.bincount(target[target != IGNORED].flatten().cpu(), minlength=n)


def frequency_logits(counts: Tensor) -> Tensor:
    r"""Logarithms of the frequencies, by Laplace's rule of succession.

    .. math::
        \ln p_c = \ln \frac{N_c + 1}{N + n}

    A class that does not occur in training is unlikely, but not impossible.

    Arguments:
        counts: The numbers :math:`N_c` of each class in training, (n).

    Example:
        >>> frequency_logits(torch.tensor([1, 0, 2])).exp()
        tensor([0.3333, 0.1667, 0.5000])
    """
    return _frequencies(counts).log().to(torch.get_default_dtype())


def _frequencies(counts: Tensor) -> Tensor:
    return (counts.double() + 1) / (counts.sum() + len(counts))


def frequency_scores(training: Tensor, counts: Tensor) -> dict[str, float]:
    r"""The scores of this predictor on targets with other counts.

    .. math::
        -\sum_c q_c \ln p_c, \qquad q_{\arg\max p}

    Arguments:
        training: Counts of the classes in training, which give p, (n).
        counts: Counts of the classes to be predicted, which give q, (n).

    Returns:
        Cross entropy, accuracy, bits and perplexity, by the names of the metrics.

    Example:
        >>> scores = frequency_scores(torch.tensor([3, 0]), torch.tensor([1, 1]))
        >>> round(scores["cross_entropy"], 4), scores["accuracy"]
        (0.9163, 0.5)
    """
    p = _frequencies(training)
    q = counts.double() / counts.sum()
    entropy = -float((q * p.log()).sum())
    return {
        "cross_entropy": entropy,
        "accuracy": float(q[p.argmax()]),
        "bpc": entropy / math.log(2),
        "perplexity": math.exp(entropy),
    }
