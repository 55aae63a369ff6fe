"""Window statistics against those of the values themselves."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gradients import check_gradients, check_second_gradients
from torch import Tensor

from cayley.norms.windows import (
    TimeWindow,
    advance,
    coarse,
    mean_and_variance,
    measured_from,
    reference_of,
    reference_with_past,
    sliding_sum,
    window_statistics,
)

windows = pytest.mark.parametrize("window", [1, 2, 3, 5, 7, 8, 20])


def expected_statistics(a: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Of the values (T, B, F) themselves, over units and steps."""
    means, variances = [], []
    for t in range(len(a)):
        values = a[max(0, t + 1 - window) : t + 1].transpose(0, 1).flatten(1)
        means.append(values.mean(1, keepdim=True))
        variances.append(values.var(1, correction=0, keepdim=True))
    return torch.stack(means), torch.stack(variances)


@windows
def test_statistics_are_those_of_all_values_in_the_window(window: int) -> None:
    a = torch.randn(17, 3, 4) * torch.rand(17, 1, 1) + torch.randn(17, 1, 1)
    found = window_statistics(*mean_and_variance(a, 2), torch.ones(17, 1, 1), window)
    torch.testing.assert_close(found, expected_statistics(a, window))


@windows
def test_weights_count_values(window: int) -> None:
    """Steps with different numbers of values pool as their values do; a weight of 0 leaves out."""
    sizes = [4, 4, 0, 3, 2, 2, 0, 0, 1]
    steps = [torch.randn(size, 2) + t for t, size in enumerate(sizes)]
    m = torch.stack([x.mean(0) if len(x) else torch.full((2,), 9.0) for x in steps])[:, None]
    v = torch.stack([x.var(0, correction=0) if len(x) else torch.ones(2) for x in steps])[:, None]
    w = torch.tensor(sizes, dtype=m.dtype)[:, None, None]
    mean, var = window_statistics(m, v, w, window)
    for t in range(len(sizes)):
        values = torch.cat(steps[max(0, t + 1 - window) : t + 1])
        if len(values):
            torch.testing.assert_close(mean[t, 0], values.mean(0))
            torch.testing.assert_close(var[t, 0], values.var(0, correction=0))
    assert mean.isfinite().all()
    assert var.isfinite().all()


@windows
def test_gradients(window: int) -> None:
    m, v = torch.randn(9, 1, 2, requires_grad=True), torch.rand(9, 1, 2, requires_grad=True)
    w = torch.randint(1, 4, (9, 1, 1)).double()
    w[2] = 0

    def run(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return window_statistics(m * 1, v * 1, w, window)

    check_gradients(run, (m, v))
    check_second_gradients(run, (m, v))


@windows
def test_sliding_sum(window: int) -> None:
    x = torch.randn(17, 2)
    behind, ahead = sliding_sum(x, window), sliding_sum(x, window, ahead=True)
    for t in range(17):
        torch.testing.assert_close(behind[t], x[max(0, t + 1 - window) : t + 1].sum(0))
        torch.testing.assert_close(ahead[t], x[t : t + window].sum(0))


@pytest.mark.parametrize("window", [1, 2, 45, 1000])
def test_large_mean_does_not_hide_a_small_variance(window: int) -> None:
    """Mean 1000, standard deviation 0.1, in float32: nothing cancels, nothing drifts."""
    a = (1000 + 0.1 * torch.randn(5000, 2, 16)).float()
    w = torch.ones(5000, 1, 1, dtype=torch.float32)
    reference = coarse(a[:1].mean(2, keepdim=True))
    mean, var = window_statistics(*mean_and_variance(a - reference, 2), w, window)
    exact_mean, exact_var = window_statistics(*mean_and_variance(a.double(), 2), w.double(), window)
    torch.testing.assert_close(var.double(), exact_var, rtol=1e-5, atol=0)
    error = (mean.double() + reference.double() - exact_mean) / exact_var.sqrt()
    assert error.abs().max() < 1e-4


@pytest.mark.parametrize("window", [3, 45])
def test_jump_does_not_spoil_what_follows(window: int) -> None:
    """After a jump by 1000 the variance is right again as soon as the jump has left the window."""
    a = 0.1 * torch.randn(400, 1, 16)
    a[50:] += 1000
    a = a.float()
    w = torch.ones(400, 1, 1, dtype=torch.float32)
    _, var = window_statistics(*mean_and_variance(a, 2), w, window)
    _, exact = window_statistics(*mean_and_variance(a.double(), 2), w.double(), window)
    torch.testing.assert_close(var.double(), exact, rtol=2e-3, atol=0)
    assert exact[50 + window :].max() < 0.02


def test_reference_is_that_of_the_value_of_least_magnitude() -> None:
    values = torch.tensor([[torch.nan, 7.0, 1e6, torch.nan], [1003.0, -3.0, 2e6, torch.inf]])
    for dtype in (torch.float32, torch.float64):
        found = reference_of(values.to(dtype))
        assert found.tolist() == [coarse(torch.tensor(1003.0)), -3, coarse(torch.tensor(1e6)), 0]
    there = torch.tensor([[True, True, False, True], [True, False, True, True]])
    assert reference_of(values, there)[1:3].tolist() == [7, coarse(torch.tensor(2e6))]
    huge = torch.full((2, 1), torch.finfo(torch.float32).max, dtype=torch.float32)
    assert reference_of(huge) == 0


def test_past_is_measured_from_the_reference_nearer_to_zero() -> None:
    reference, weights = torch.tensor([[4.0], [4.0], [torch.nan]]), torch.ones(2, 3, 1)
    weights[:, 1] = 0
    past = TimeWindow(reference, torch.ones(2, 3, 1), torch.ones(2, 3, 1), weights)
    found = reference_with_past(torch.tensor([[-8.0], [-8.0], [-8.0]]), past)
    assert found.flatten().tolist() == [4, -8, -8]
    moved = measured_from(past, found - 1)
    assert torch.equal(moved.means[0, :2], torch.tensor([[2.0], [0.0]]))
    assert reference_with_past(reference, None) is reference


def test_reference_is_near_and_leaves_values_as_they_are() -> None:
    for dtype in (torch.float32, torch.float64):
        m = (torch.randn(1000) * 10 ** (6 * torch.rand(1000) - 3)).to(dtype)
        r = coarse(m)
        assert ((r - m).abs() <= m.abs() / 128).all()
        a = m * 1.2
        assert torch.equal((a - r).double() + r.double(), a.double())  # nothing was rounded
    assert coarse(torch.zeros(1)) == 0


def test_cost_does_not_depend_on_the_window() -> None:
    """The same operations on tensors of the same size, whatever the window."""

    class Count(torch.utils._python_dispatch.TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.calls = self.largest = 0

        def __torch_dispatch__(
            self,
            func: Callable[..., Any],
            types: Any,
            args: tuple[Any, ...] = (),
            kwargs: dict[str, Any] | None = None,
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            self.calls += 1
            if isinstance(result, Tensor):
                self.largest = max(self.largest, result.numel())
            return result

    T = 960
    m, v = torch.randn(T, 2, 1, requires_grad=True), torch.rand(T, 2, 1, requires_grad=True)
    counts = []
    for window in (2, 30, 480):
        with Count() as count:
            mean, var = window_statistics(m, v, torch.ones(T, 1, 1), window)
            torch.autograd.grad((mean + var).sum(), (m, v))
        counts.append((count.calls, count.largest))
    assert counts[0] == counts[1] == counts[2]
    assert counts[0][1] <= 2 * T


def test_advance_keeps_the_last_steps_of_each_sequence() -> None:
    m, v = torch.randn(5, 3, 1), torch.rand(5, 3, 1)
    reference, w = torch.zeros(3, 1), torch.ones(5, 1, 1)
    first = advance(None, reference, m[:2], v[:2], w[:2], 4, None)
    assert first.weights[:, 0, 0].tolist() == [0, 1, 1]
    whole = advance(None, reference, m, v, w, 4, None)
    later = advance(first, reference, m[2:], v[2:], w[2:], 4, None)
    for one, other in zip(later, whole, strict=True):
        assert torch.equal(one, other)
    lengths = torch.tensor([5, 3, 1])
    each = advance(None, reference, m, v, w, 4, lengths)
    for b, length in enumerate(lengths.tolist()):
        alone = advance(
            None, reference[:1], m[:length, b : b + 1], v[:length, b : b + 1], w[:length], 4, None
        )
        assert torch.equal(each.means[:, b], alone.means[:, 0])
        assert torch.equal(each.weights[:, b], alone.weights[:, 0])
    assert isinstance(each, TimeWindow)


@pytest.mark.parametrize("window", [2, 3, 50])
def test_operator_is_registered_soundly(window: int) -> None:
    m, v = torch.randn(7, 2, 1, requires_grad=True), torch.rand(7, 2, 1, requires_grad=True)
    arguments = (m, v, torch.ones(7, 1, 1), window)
    torch.library.opcheck(torch.ops.cayley.window_statistics.default, arguments)
