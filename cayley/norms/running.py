"""Window statistics inside a loop over time, and the sums of their gradient on the way back.

They compute one step at a time what :mod:`cayley.norms.windows` computes for all steps together,
for recurrences whose next step needs the statistics of this one. Sequences may end on the way, the
last ones first: their rows are then missing in all later steps.
"""

from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import pad

from cayley.norms.windows import PartialStatistics, TimeWindow, merge, suffix_statistics

__all__ = ["DefinedWindow", "RunningAdjoint", "RunningWindow", "window_counts"]


class RunningWindow:
    """Mean and variance over the last K steps, step by step, at a cost independent of K.

    Arguments:
        window: The number K of steps.
        past: The statistics of the K − 1 steps before the first.

    Example:
        >>> statistics = RunningWindow(2)
        >>> for m in (1.0, 2.0, 3.0):
        ...     mean, variance = statistics.push(torch.tensor([[m]]), torch.zeros(1, 1), 1)
        >>> mean.item(), variance.item()
        (2.5, 0.25)
    """

    def __init__(self, window: int, past: TimeWindow | None = None) -> None:
        self.window = window
        self._block: list[tuple[Tensor, Tensor, int]] = []
        self._begin: PartialStatistics | None = None
        self._end: list[PartialStatistics] = []
        if past is not None and window > 1:
            n, mean, spread = suffix_statistics(past.means, past.variances, past.weights)
            self._end = [PartialStatistics(*step) for step in zip(n, mean, spread, strict=True)]

    def push(self, m: Tensor, v: Tensor, w: int) -> tuple[Tensor, Tensor]:
        """Statistics of the window that ends with this step.

        Arguments:
            m: The mean of the step, (G, ·), where G never grows.
            v: Its population variance, (G, ·).
            w: The number of values that they were taken over.
        """
        if self.window == 1:
            return m, v
        G, position = len(m), len(self._block)
        step = PartialStatistics(w, m, w * v)
        begin = step if self._begin is None else merge(_first(self._begin, G), step)
        self._block.append((m, v, w))
        total = begin
        if position < len(self._end):
            total = merge(begin, _first(self._end[position], G))
        self._begin = begin
        if position == self.window - 1:
            self._close(G)
        return total.mean, total.spread / total.n

    def _close(self, G: int) -> None:
        """Sum the full block from its end; its first step is in no window any more."""
        m, v, w = zip(*self._block[1:], strict=True)
        m, v = (torch.stack([x[:G] for x in steps]) for steps in (m, v))
        # filling a tensor on a GPU with a number does not wait for it; copying a list would
        weights = m.new_full((len(w),), w[0]) if len({*w}) == 1 else m.new_tensor(w)
        _, mean, spread = suffix_statistics(m, v, weights[:, None, None])
        # numbers, not tensors: they cost the loop nothing
        n = [*accumulate(reversed(w))][::-1]
        self._end = [PartialStatistics(*step) for step in zip(n, mean, spread, strict=True)]
        self._block, self._begin = [], None


class DefinedWindow:
    """The same as :class:`RunningWindow`, by the sums that define it, at K times the cost.

    Arguments:
        window: The number K of steps.
        past: The statistics of the K − 1 steps before the first.
    """

    def __init__(self, window: int, past: TimeWindow | None = None) -> None:
        self.window = window
        self._steps: list[tuple[Tensor, Tensor, Tensor]] = []
        if past is not None:
            self._steps = list(zip(past.means, past.variances, past.weights, strict=True))

    def push(self, m: Tensor, v: Tensor, w: int) -> tuple[Tensor, Tensor]:
        """Statistics of the window that ends with this step; see :meth:`RunningWindow.push`."""
        self._steps.append((m, v, torch.full_like(m[:, :1], w)))
        self._steps = self._steps[-self.window :]
        ms, vs, ws = (
            torch.stack([x[: len(m)] for x in steps]) for steps in zip(*self._steps, strict=True)
        )
        n = ws.sum(0)
        mean = (ws * ms).sum(0) / n
        return mean, (ws * (vs + (ms - mean).square())).sum(0) / n


def _first(part: PartialStatistics, G: int) -> PartialStatistics:
    n, mean, spread = part
    return PartialStatistics(n[:G] if isinstance(n, Tensor) else n, mean[:G], spread[:G])


def window_counts(
    weights: list[int], window: int, past: Tensor | None = None
) -> list[int | Tensor]:
    """The number of values in the window of each step.

    Arguments:
        weights: The number of values of each step.
        window: The number K of steps.
        past: The number of values of the K − 1 steps before the first, (K − 1, G, 1).

    Example:
        >>> window_counts([4, 4, 3, 1], 2)
        [4, 8, 7, 4]
    """
    counts: list[int | Tensor] = []
    n = 0
    for t, w in enumerate(weights):
        n += w - (weights[t - window] if t >= window else 0)
        counts.append(n)
    if past is not None and window > 1:
        before = past.flip(0).cumsum(0).flip(0)
        for t in range(min(len(weights), window - 1)):
            counts[t] = counts[t] + before[t]
    return counts


class RunningAdjoint:
    """Sums over each step and the K − 1 after it, for steps given from the last to the first.

    A step's mean and variance are in the windows of these steps, so that their gradients are such
    sums. The cost is independent of K.

    Arguments:
        window: The number K of steps.

    Example:
        >>> sums = RunningAdjoint(2)
        >>> [sums.push(t, torch.full((1, 1, 1), 10.0**t)).item() for t in (2, 1, 0)]
        [100.0, 110.0, 11.0]
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self._block: list[Tensor] = []
        self._sum: Tensor | None = None
        self._next: Tensor | None = None

    def push(self, t: int, x: Tensor) -> Tensor:
        """The sum from step t on, of tensors (·, G, ·) where G never shrinks."""
        if self.window == 1:
            return x
        G, position = x.shape[1], t % self.window
        if position == self.window - 1 and self._block:
            self._next = self._beginnings(G)
            self._block, self._sum = [], None
        self._sum = x if self._sum is None else x + _grown(self._sum, G)
        self._block.append(x)
        if self._next is None or position == 0:
            return self._sum
        return self._sum + _grown(self._next[min(position, len(self._next)) - 1], G)

    def before(self, G: int) -> Tensor:
        """After step 0: the sums of the K − 1 steps before it, (K − 1, ·, G, ·)."""
        sums = self._beginnings(G)[: self.window - 1]
        missing = self.window - 1 - len(sums)
        return torch.cat((sums, sums[-1:].expand(missing, *sums.shape[1:])))

    def _beginnings(self, G: int) -> Tensor:
        """Sums of the first 1, 2, … steps of the block."""
        return torch.stack([_grown(x, G) for x in reversed(self._block)]).cumsum(0)


def _grown(x: Tensor, G: int) -> Tensor:
    """A tensor (·, g, ·) with rows of 0 for the sequences that ended before its step."""
    return x if x.shape[-2] == G else pad(x, (0, 0, 0, G - x.shape[-2]))
