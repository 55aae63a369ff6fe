"""Statistics of rows: whole, masked, sparse, merged and running."""

import pytest
import torch

from cayley.preconditioners.statistics import RunningStatistics, Statistics


def assert_moments(found: Statistics, rows: torch.Tensor) -> None:
    assert found.n == len(rows)
    torch.testing.assert_close(found.mean, rows.mean(0))
    torch.testing.assert_close(found.variance, rows.var(0, correction=0))
    torch.testing.assert_close(found.second_moment, rows.square().mean(0))


def test_leading_axes_are_rows() -> None:
    values = torch.randn(4, 3, 2, 5) + 2
    assert_moments(Statistics.of(values), values.reshape(-1, 5))
    assert_moments(Statistics.of(values[0, 0, 0]), values[0, 0, :1])


def test_only_reached_rows_count() -> None:
    values, reached = torch.randn(7, 3, 5), torch.rand(7, 3) < 0.5
    rows = values[reached]
    assert_moments(Statistics.of(values, reached), rows)
    values[~reached] = 1e300
    assert_moments(Statistics.of(values, reached), rows)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_sparse_rows_are_as_dense_ones(layout: str) -> None:
    dense = torch.randn(20, 6).where(torch.rand(20, 6) < 0.3, 0)
    dense[:, 2] = 0
    sparse = dense.to_sparse_coo() if layout == "coo" else dense.to_sparse_csr()
    reached = torch.rand(20) < 0.6
    assert_moments(Statistics.of(sparse), dense)
    assert_moments(Statistics.of(sparse, reached), dense[reached])


def test_merged_micro_batches_are_the_batch() -> None:
    rows = torch.randn(30, 4) * torch.tensor([1.0, 10.0, 0.1, 0.0]) + torch.arange(4)
    merged = Statistics.none(4, device=rows.device, dtype=rows.dtype)
    for part in rows.split([1, 12, 0, 17]):
        merged = merged.merge(Statistics.of(part))
    assert_moments(merged, rows)


def test_a_large_mean_costs_no_digits() -> None:
    exact = 1000 + 0.1 * torch.randn(100_000, 3)
    found = Statistics.of(exact.float())
    true = exact.float().double()
    torch.testing.assert_close(found.mean.double(), true.mean(0), rtol=1e-6, atol=0)
    torch.testing.assert_close(found.variance.double(), true.var(0), rtol=1e-3, atol=0)


def test_half_precision_does_not_overflow() -> None:
    rows = (300 * torch.randn(1000, 2)).half()
    found = Statistics.of(rows)
    assert found.mean.dtype == torch.float32
    torch.testing.assert_close(
        found.variance.double(), rows.double().var(0, correction=0), rtol=1e-4, atol=0
    )
    assert Statistics.of(rows, dtype=torch.float64).mean.dtype == torch.float64


def test_autocast_does_not_reach_statistics() -> None:
    rows = torch.randn(50, 3, dtype=torch.float32) + 100
    with torch.autocast("cpu", torch.bfloat16):
        inside = Statistics.of(rows)
    torch.testing.assert_close(inside.mean, rows.mean(0))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_rows_that_are_not_finite_count_as_none(bad: float) -> None:
    rows = torch.randn(5, 3)
    rows[2, 1] = bad
    found = Statistics.of(rows)
    assert found.n == 0
    good = torch.randn(4, 3)
    assert_moments(Statistics.of(good).merge(found), good)


def test_no_rows_and_one_row() -> None:
    nothing = Statistics.of(torch.randn(0, 3))
    assert nothing.n == 0
    assert not nothing.variance.any()
    one = torch.randn(1, 3)
    assert_moments(Statistics.of(one), one)
    assert_moments(nothing.merge(nothing).merge(Statistics.of(one)), one)


def test_running_statistics_of_algorithm_3_start_at_the_identity() -> None:
    running = RunningStatistics(2, 0.9, "identity", dtype=torch.float64)
    mean, variance = torch.zeros(2), torch.ones(2)
    for _ in range(5):
        rows = torch.randn(10, 2) * 3 + 1
        running.update(Statistics.of(rows))
        mean = 0.9 * mean + 0.1 * rows.mean(0)
        variance = 0.9 * variance + 0.1 * rows.var(0, correction=0)
        torch.testing.assert_close(running.mean, mean)
        torch.testing.assert_close(running.variance, variance)


def test_running_statistics_from_the_batch_are_a_weighted_mean() -> None:
    running = RunningStatistics(2, 0.9, "batch", dtype=torch.float64)
    batches = [torch.randn(10, 2) * 3 + 1 for _ in range(4)]
    for rows in batches:
        running.update(Statistics.of(rows))
    weights = torch.tensor([0.9**k for k in range(3, -1, -1)])
    squares = torch.stack([rows.square().mean(0) for rows in batches])
    torch.testing.assert_close(running.second_moment, weights @ squares / weights.sum())
    assert running.n == 10


def test_running_statistics_pass_over_what_does_not_count() -> None:
    running = RunningStatistics(2, 0.9, "batch", dtype=torch.float64)
    rows = torch.randn(6, 2)
    running.update(Statistics.of(rows))
    running.update(Statistics.of(rows * float("nan")))
    running.update(Statistics.of(rows + 5), torch.tensor(False))
    torch.testing.assert_close(running.mean, rows.mean(0))
