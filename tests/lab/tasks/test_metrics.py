import math

import pytest
import torch

from cayley.lab.tasks import Batch, Position
from cayley.lab.tasks.metrics import (
    Metric,
    accuracy,
    bits_per_character,
    class_loss,
    crossentropy,
    mean,
    mean_squared_error,
    perplexity,
    totals,
)


def batch(target: torch.Tensor) -> Batch:
    return Batch(torch.empty(0), target, "test", Position(), Position(1, 0))


def pooled(metric: Metric, output: torch.Tensor, target: torch.Tensor, pieces: list[int]) -> float:
    parts = zip(output.split(pieces), target.split(pieces), strict=True)
    value = metric.pool(torch.cat([metric.partial(o, batch(t)) for o, t in parts]))
    assert value is not None
    return value


def test_against_plain_formulas_in_unequal_pieces() -> None:
    output, target = torch.randn(11, 4, 5), torch.randint(0, 5, (11, 4))
    target[torch.rand(11, 4) < 0.3] = -100
    rows = [
        (math.log(sum(math.exp(v) for v in z)) - z[y], z.index(max(z)) == y)
        for z, y in zip(output.flatten(0, 1).tolist(), target.flatten().tolist(), strict=True)
        if y >= 0
    ]
    entropy = sum(row[0] for row in rows) / len(rows)
    for pieces in ([11], [5, 6], [1, 9, 1]):
        assert pooled(crossentropy, output, target, pieces) == pytest.approx(entropy)
        assert pooled(bits_per_character, output, target, pieces) == pytest.approx(
            entropy / math.log(2)
        )
        assert pooled(perplexity, output, target, pieces) == pytest.approx(math.exp(entropy))
        assert pooled(accuracy, output, target, pieces) == pytest.approx(
            sum(row[1] for row in rows) / len(rows)
        )
    assert float(class_loss(output, target)) == pytest.approx(entropy)


def test_mean_squared_error() -> None:
    output, target = torch.randn(11, 3), torch.randn(11, 3)
    expected = sum((o - t) ** 2 for o, t in zip(output.flatten(), target.flatten(), strict=True))
    got = pooled(mean_squared_error, output, target, [4, 7])
    assert got == pytest.approx(float(expected) / 33)


def test_what_nobody_wants_may_be_nan() -> None:
    values = torch.tensor([1.0, torch.nan, 3.0])
    assert totals(values, torch.tensor([True, False, True])).tolist() == [[4.0, 2.0]]


def test_sums_of_many_float32_numbers_are_exact() -> None:
    """In float32 a running sum of 2²⁵ ones stops at 2²⁴; these are pooled in float64."""
    rows = totals(torch.ones(3, dtype=torch.float32)).repeat(2**16, 1)
    assert rows.dtype == torch.float64
    assert mean(rows) == 1.0
