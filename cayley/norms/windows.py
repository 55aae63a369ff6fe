r"""Mean and variance over the last K steps, from those of each step, at a cost independent of K.

A step contributes its mean :math:`m_t`, its population variance :math:`v_t` and the number
:math:`w_t` of values that they were taken over. Over the steps of a window

.. math::
    \mu = \frac{1}{n} \sum_i w_i m_i, \qquad
    \sigma^2 = \frac{1}{n} \sum_i w_i \bigl(v_i + (m_i - \mu)^2\bigr), \qquad n = \sum_i w_i,

the mean of means, and the mean of variances plus the variance of means. Time is cut into blocks
of K steps: every window is the end of one block and the beginning of the next, each summed once.
Nothing is ever subtracted from a running sum, so that nothing cancels and no error builds up.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from cayley.tracing import computes_now, needs_loop

__all__ = [
    "PartialStatistics",
    "TimeWindow",
    "advance",
    "coarse",
    "mean_and_variance",
    "measured_from",
    "merge",
    "reference_of",
    "reference_with_past",
    "sliding_sum",
    "suffix_statistics",
    "window_statistics",
]


class TimeWindow(NamedTuple):
    """The state of a normalisation between the steps of a stream.

    The statistics of the last K − 1 steps, oldest first, (K − 1, G, ·) for G groups.

    Attributes:
        reference: What is subtracted from the means, (G, ·).
        means: The mean of each step, minus the reference.
        variances: The variance of each step.
        weights: The number of values that they were taken over; 0 for steps before the first.
    """

    reference: Tensor
    means: Tensor
    variances: Tensor
    weights: Tensor


def measured_from(past: TimeWindow, reference: Tensor) -> TimeWindow:
    """The same window with another reference.

    Example:
        >>> one = torch.ones(1, 1, 1)
        >>> past = TimeWindow(one[0], 3 * one, one, one)
        >>> measured_from(past, -one[0]).means.item()
        5.0
    """
    means = past.means + (past.reference - reference)
    means = means.where(past.weights > 0, 0)  # 0 for steps that did not happen
    return TimeWindow(reference, means, past.variances, past.weights)


def advance(
    past: TimeWindow | None,
    reference: Tensor,
    m: Tensor,
    v: Tensor,
    w: Tensor,
    window: int,
    lengths: Tensor | None,
) -> TimeWindow:
    """The window of the last K − 1 steps after T more.

    Arguments:
        past: The window before; None for an empty one.
        reference: What is subtracted from the means, (G, ·).
        m: The mean of each step, (T, G, ·).
        v: The variance of each step, (T, G, ·).
        w: The number of values that they were taken over, (T, G, 1) or (T, 1, 1).
        window: The number K of steps.
        lengths: How many of the T steps each group has, (G); None for all.
    """
    new = (m, v, w.expand(-1, m.shape[1], 1))
    T = m.shape[0]
    # T may be symbolic, so it must not be compared
    if lengths is None and computes_now(m) and window <= T + 1:
        return TimeWindow(reference, *(x.narrow(0, T - window + 1, window - 1) for x in new))
    if past is None:
        zeros = m.new_zeros(window - 1, *m.shape[1:])
        past = TimeWindow(reference, zeros, zeros, zeros[..., :1])
    else:
        past = measured_from(past, reference)
    before = (past.means, past.variances, past.weights)
    tables = [torch.cat(pair) for pair in zip(before, new, strict=True)]
    if lengths is None:
        return TimeWindow(reference, *(x.narrow(0, T, window - 1) for x in tables))
    steps = torch.arange(window - 1, device=m.device)[:, None, None]
    index = lengths.to(m.device)[None, :, None] + steps
    return TimeWindow(reference, *(x.gather(0, index.expand(-1, -1, x.shape[2])) for x in tables))


class PartialStatistics(NamedTuple):
    """Number n of values, mean μ, and n·σ² of a part of a window."""

    n: Tensor | float
    mean: Tensor
    spread: Tensor


def mean_and_variance(a: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Mean and population variance along an axis, which is kept with size 1."""
    if a.numel() == 0:  # torch would warn
        return a.sum(axis, keepdim=True), a.sum(axis, keepdim=True)
    v, m = torch.var_mean(a, axis, correction=0, keepdim=True)
    return m, v


def coarse(m: Tensor) -> Tensor:
    """A number near m with only 8 bits, by Veltkamp's splitting; it has no derivative.

    Subtracting it from values near m is exact, and statistics of the differences keep all digits: a
    mean of 1000 does not hide a standard deviation of 0.1. It is constant around almost every m, so
    it needs no gradient.

    Example:
        >>> coarse(torch.tensor([1001.3, 0.0]))
        tensor([1000.,    0.])
    """
    m = m.detach()
    bits = {torch.float32: 24, torch.float64: 53}[m.dtype]
    c = m * (2.0 ** (bits - 8) + 1)
    return c - (c - m)


def reference_of(values: Tensor, is_there: Tensor | None = None) -> Tensor:
    """The reference to subtract: near the value of least magnitude over time, (T, ·) ↦ (·).

    If the values share a large mean, they all lie near the reference, and :func:`coarse` says what
    is gained by subtracting it. If they do not, it is small and costs no digits of any step: a
    single step that is large, infinite or NaN does not affect the others.

    Arguments:
        values: A value of each step; the result is 0 if none is finite.
        is_there: Which of them count, (T, ·); None for all.

    Example:
        >>> reference_of(torch.tensor([[1e6, 3.0], [torch.nan, -2.0], [1001.0, -4.0]]))
        tensor([1000.,   -2.])
    """
    values = values.detach()
    size = values.abs().nan_to_num(torch.inf, torch.inf)
    if is_there is not None:
        size = size.where(is_there, torch.inf)
    found = coarse(values.gather(0, size.argmin(0, keepdim=True))[0])
    return found.nan_to_num(0, 0, 0)


def reference_with_past(reference: Tensor, past: TimeWindow | None) -> Tensor:
    """The reference or that of the past steps, whichever has the smaller magnitude."""
    if past is None:
        return reference
    before = coarse(past.reference)
    nearer = (past.weights[-1] > 0) & (before.abs() < reference.abs())
    return torch.where(nearer, before, reference)


def merge(a: PartialStatistics, b: PartialStatistics) -> PartialStatistics:
    """Statistics of the union of two disjoint sets, of which one may be empty.

    References:
        Updating Formulae and a Pairwise Algorithm for Computing Sample Variances, Chan, Golub,
        LeVeque, 1979.

    Example:
        >>> x, y = torch.randn(3), torch.randn(5)
        >>> a = PartialStatistics(3, x.mean(), 3 * x.var(correction=0))
        >>> b = PartialStatistics(5, y.mean(), 5 * y.var(correction=0))
        >>> n, mean, spread = merge(a, b)
        >>> torch.testing.assert_close(spread / n, torch.cat((x, y)).var(correction=0))
    """
    n = a.n + b.n
    d = b.mean - a.mean
    spread = a.spread + b.spread + d * d * (a.n * b.n / n)
    return PartialStatistics(n, a.mean + d * (b.n / n), spread)


def _prefix_statistics(m: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Statistics of the first 1, 2, … steps, by Welford's sums, along the first axis."""
    n = w.cumsum(0)
    safe = n.clamp_min(1)
    x = m - m[:1].detach()
    mean = (w * x).cumsum(0) / safe
    d = x - torch.cat((torch.zeros_like(mean[:1]), mean[:-1]))
    spread = (w * v + d * d * (w * (n - w) / safe)).cumsum(0)
    return n, mean + m[:1].detach(), spread


def suffix_statistics(m: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Statistics of the steps from the first, second, … to the last, along the first axis."""
    n, mean, spread = _prefix_statistics(m.flip(0), v.flip(0), w.flip(0))
    return n.flip(0), mean.flip(0), spread.flip(0)


def sliding_sum(x: Tensor, window: int, *, ahead: bool = False) -> Tensor:
    """Sum over each step and the ``window`` − 1 before it (after it if ``ahead``), along axis 0.

    Example:
        >>> sliding_sum(torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0]), 3)
        tensor([ 1.,  3.,  7., 14., 28.])
    """
    if window == 1:
        return x
    if ahead:
        return sliding_sum(x.flip(0), window).flip(0)
    blocks = _to_blocks(x, window)
    ends = blocks.flip(0).cumsum(0).flip(0)
    return _from_blocks(blocks.cumsum(0) + _of_block_before(ends), x.shape[0])


def window_statistics(m: Tensor, v: Tensor, w: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Mean and variance over the last ``window`` steps (or all so far) at every step.

    Arguments:
        m: The mean of each step, (T, G, ·).
        v: The population variance of each step, (T, G, ·).
        w: The number of values that they were taken over, (T, G, 1) or (T, 1, 1); 0 for a missing
            step.
        window: The number K of steps.

    Returns:
        μ and σ² at each step, shaped as m; finite but meaningless if the whole window is missing.
        Their gradients reach every step of the window, also at a cost independent of K.

    Example:
        >>> a = torch.randn(6, 1, 4)
        >>> v, m = torch.var_mean(a, -1, correction=0, keepdim=True)
        >>> mean, variance = window_statistics(m, v, torch.ones(6, 1, 1), 3)
        >>> torch.testing.assert_close(mean[4, 0, 0], a[2:5].mean())
        >>> torch.testing.assert_close(variance[4, 0, 0], a[2:5].var(correction=0))
    """
    if window == 1:
        return m, v
    run = _statistics if needs_loop(m, v, w) else _window_statistics
    return run(m, v, w, window)


def _statistics(m: Tensor, v: Tensor, w: Tensor, window: int) -> tuple[Tensor, Tensor]:
    K = max(1, min(window, len(m)))
    blocks = [_to_blocks(x, K) for x in (m, v, w)]
    end = PartialStatistics(*(_of_block_before(x) for x in suffix_statistics(*blocks)))
    n, mean, spread = _prefix_statistics(*blocks)
    # for a window that is missing altogether, divide by 1 instead of 0
    n = torch.where(n + end.n == 0, 1, n)
    n, mean, spread = merge(end, PartialStatistics(n, mean, spread))
    mean, var = (_from_blocks(x, len(m)).contiguous() for x in (mean, spread / n))
    return mean, var


def _statistics_backward(
    grad_mean: Tensor, grad_var: Tensor, m: Tensor, mean: Tensor, w: Tensor, window: int
) -> tuple[Tensor, Tensor]:
    K = max(1, min(window, len(m)))
    n = sliding_sum(w, K).clamp_min(1)
    # μ minimises σ², so σ² does not change with μ to first order: μ has only its own gradient
    P, Q, R = (sliding_sum(x / n, K, ahead=True) for x in (grad_mean, grad_var, grad_var * mean))
    return w * (P + 2 * (Q * m - R)), w * Q


def _to_blocks(x: Tensor, K: int) -> Tensor:
    """(T, ·) as (K, blocks, ·), filled up with 0."""
    missing = -x.shape[0] % K
    if missing:
        x = torch.cat((x, x.new_zeros(missing, *x.shape[1:])))
    return x.unflatten(0, (-1, K)).transpose(0, 1)


def _from_blocks(x: Tensor, T: int) -> Tensor:
    return x.transpose(0, 1).flatten(0, 1)[:T]


def _of_block_before(ends: Tensor) -> Tensor:
    """What the previous block contributes to the window that ends at each position of a block."""
    ends = torch.cat((ends[1:], torch.zeros_like(ends[:1])))
    return torch.cat((torch.zeros_like(ends[:, :1]), ends[:, :-1]), 1)


_window_statistics = torch.library.custom_op(
    "cayley::window_statistics", _statistics, mutates_args=()
)
_window_statistics_backward = torch.library.custom_op(
    "cayley::window_statistics_backward", _statistics_backward, mutates_args=()
)


@_window_statistics.register_fake
def _(m: Tensor, v: Tensor, w: Tensor, window: int) -> tuple[Tensor, Tensor]:
    return m.new_empty(m.shape), m.new_empty(m.shape)


@_window_statistics_backward.register_fake
def _(
    grad_mean: Tensor, grad_var: Tensor, m: Tensor, mean: Tensor, w: Tensor, window: int
) -> tuple[Tensor, Tensor]:
    return m.new_empty(m.shape), m.new_empty(m.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    m, v, w, ctx.window = inputs
    ctx.save_for_backward(m, v, w, output[0])


def _differentiate(ctx: Any, grad_mean: Tensor, grad_var: Tensor) -> tuple[Tensor | None, ...]:
    m, v, w, mean = ctx.saved_tensors
    if not torch.is_grad_enabled():
        gradients = _window_statistics_backward(grad_mean, grad_var, m, mean, w, ctx.window)
    else:  # the gradient will be differentiated again, so its operations must be recorded
        mean, _ = _statistics(m, v, w, ctx.window)
        gradients = _statistics_backward(grad_mean, grad_var, m, mean, w, ctx.window)
    return *gradients, None, None


_window_statistics.register_autograd(_differentiate, setup_context=_save)
