"""Statistics in a loop against those of all steps at once."""

from typing import Any

import pytest
import torch
from torch import Tensor

from cayley.norms.running import DefinedWindow, RunningAdjoint, RunningWindow, window_counts
from cayley.norms.windows import TimeWindow, sliding_sum, window_statistics

windows = pytest.mark.parametrize("window", [1, 2, 3, 4, 9, 30])


def steps(T: int, G: int) -> tuple[Tensor, Tensor, list[int]]:
    w = torch.randint(1, 5, (T,)).tolist()
    return torch.randn(T, G, 2) + 3, torch.rand(T, G, 2), w


def past_of(window: int, G: int) -> TimeWindow:
    """Some steps before the first; not all of them are there, and in row 0 none."""
    w = torch.ones(window - 1, G, 1)
    w[: window // 3] = 0
    w[:, 0] = 0
    shape = (window - 1, G, 2)
    return TimeWindow(torch.zeros(G, 2), torch.randn(shape) * w, torch.rand(shape) * w, w)


@windows
@pytest.mark.parametrize("kind", [RunningWindow, DefinedWindow])
@pytest.mark.parametrize("with_past", [False, True])
def test_loop_gives_what_all_steps_at_once_give(
    window: int, kind: type[RunningWindow], with_past: bool
) -> None:
    m, v, w = steps(20, 3)
    past = past_of(window, 3) if with_past else None
    weights = torch.tensor(w, dtype=m.dtype)[:, None, None].expand(-1, 3, 1)
    tables: Any = (m, v, weights)
    if past is not None:
        tables = tuple(torch.cat(pair) for pair in zip(past[1:], tables, strict=True))
    mean, var = (x[-20:] for x in window_statistics(*tables, window=window))
    statistics = kind(window, past)
    counts = window_counts(w, window, None if past is None else past.weights)
    n = sliding_sum(tables[2], window)[-20:]
    for t in range(20):
        found = statistics.push(m[t], v[t], w[t])
        torch.testing.assert_close(found, (mean[t], var[t]))
        torch.testing.assert_close(torch.as_tensor(counts[t]).double().expand(3, 1), n[t])


@windows
def test_rows_may_leave(window: int) -> None:
    """The sequences that stay have the statistics they have alone."""
    m, v, _ = steps(12, 3)
    sizes = [3] * 4 + [2] * 5 + [1] * 3
    together = RunningWindow(window)
    found = [together.push(m[t, :B], v[t, :B], 1) for t, B in enumerate(sizes)]
    for row in range(3):
        alone = RunningWindow(window)
        for t in range(12):
            expected = alone.push(m[t, row : row + 1], v[t, row : row + 1], 1)
            if row < sizes[t]:
                one = tuple(x[row : row + 1] for x in found[t])
                torch.testing.assert_close(one, expected)


@windows
@pytest.mark.parametrize("T", [1, 2, 8, 9, 13])
def test_adjoint_sums_look_ahead(window: int, T: int) -> None:
    x = torch.randn(T, 3, 2, 2)
    expected = sliding_sum(x, window, ahead=True)
    sums = RunningAdjoint(window)
    for t in reversed(range(T)):
        torch.testing.assert_close(sums.push(t, x[t]), expected[t])
    if window > 1:
        before = sums.before(2)
        assert len(before) == window - 1
        for k in range(window - 1):  # the step K − 1 − k before the first
            torch.testing.assert_close(before[k], x[: k + 1].sum(0))


def test_adjoint_of_rows_that_left() -> None:
    x = torch.randn(7, 1, 3, 1)
    sizes = [3, 3, 3, 2, 2, 1, 1]
    masked = torch.stack([x[t] * (torch.arange(3) < B)[:, None] for t, B in enumerate(sizes)])
    expected = sliding_sum(masked, 3, ahead=True)
    sums = RunningAdjoint(3)
    for t in reversed(range(7)):
        torch.testing.assert_close(sums.push(t, x[t, :, : sizes[t]]), expected[t, :, : sizes[t]])


def test_loop_keeps_only_one_block() -> None:
    """Memory and work do not grow with time, and a step's work not with the window."""
    statistics = RunningWindow(10)
    for t in range(95):
        statistics.push(torch.randn(2, 1), torch.rand(2, 1), 1)
        assert len(statistics._block) == (t + 1) % 10
        assert len(statistics._end) in (0, 9)
