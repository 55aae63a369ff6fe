r"""Assorted-time normalisation: layer or batch normalisation over the last K steps."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from cayley.checks import check_integer, check_number
from cayley.norms.batch import MAX_STEPS, PopulationStatistics
from cayley.norms.layouts import packed_table, padded, step_mask
from cayley.norms.pooling import Pool, find_pool
from cayley.norms.windows import (
    TimeWindow,
    advance,
    mean_and_variance,
    measured_from,
    reference_of,
    reference_with_past,
    sliding_sum,
    window_statistics,
)

__all__ = [
    "AssortedTimeNorm",
    "NormState",
    "StepStatistics",
    "assorted_time_norm",
    "bessel_factor",
    "check_over",
    "normalize",
]

Over = Literal["layer", "batch"]


class StepStatistics(NamedTuple):
    """Statistics of every step, and of the window that ends with it.

    Attributes:
        reference: What is subtracted from all means, (B, 1) over the layer, (1, F) over the batch.
        m: The mean of each step, (T, B, 1) or (T, 1, F).
        v: The population variance of each step, shaped as m.
        w: The number of examples, (T, 1, 1).
        mean: The mean of the window, shaped as m.
        var: The population variance of the window, shaped as m.
    """

    reference: Tensor
    m: Tensor
    v: Tensor
    w: Tensor
    mean: Tensor
    var: Tensor


def assorted_time_norm(
    a: Tensor,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    window: int,
    over: Over = "layer",
    eps: float = 1e-5,
    batch_sizes: Tensor | None = None,
    past: TimeWindow | None = None,
    reference: Tensor | None = None,
    pool: Pool | None = None,
) -> tuple[Tensor, StepStatistics]:
    r"""Normalise each step by the mean and variance of the last K steps.

    .. math:: y_t = \gamma \odot \frac{a_t - \mu_t}{\sqrt{\sigma_t^2 + \epsilon}} + \beta

    μ and σ² are taken over the last :math:`k_t = \min(t, K)` steps and, for each example, all
    units, or, for each unit, all examples. With K = 1 this is layer or batch normalisation.

    References:
        Breaking Time Invariance: Assorted-Time Normalization for RNNs, Pospisil, Zadorozhnyy, Ye,
        2022, equations 3.7 to 3.9 of Pospisil's dissertation (2023).

    Arguments:
        a: (T, B, F); with ``batch_sizes``, packed steps, (N, F).
        gamma: γ, (F); None for 1.
        beta: β, (F); None for 0.
        window: The number K of steps.
        over: ``"layer"`` or ``"batch"``.
        eps: ε.
        batch_sizes: How many sequences have a step t, never increasing, (T), on the CPU.
        past: The window before the first step; None for an empty one.
        reference: What the means in the result are measured from, (B, 1) over the layer, (1, F)
            over the batch; None for one that keeps the digits of values with a large mean.
        pool: What makes statistics over the batch those of all processes; None for this one's.

    Returns:
        y, in the layout of a, and the statistics it was made with.

    Example:
        >>> a = torch.randn(7, 2, 4)
        >>> y, _ = assorted_time_norm(a, window=3)
        >>> last = a[4:7, 0]
        >>> expected = (a[6, 0] - last.mean()) / (last.var(correction=0) + 1e-5).sqrt()
        >>> torch.testing.assert_close(y[6, 0], expected)
    """
    rows = None if batch_sizes is None else step_mask(batch_sizes, a.device)
    a = a if rows is None else padded(a, rows)
    axis = 2 if over == "layer" else 1
    past = past if window > 1 else None
    if reference is None:
        # the sum of one value, or 0 for an empty batch
        values = a.narrow(axis, 0, min(1, a.shape[axis])).sum(axis, keepdim=True)
        is_there = rows[..., None] if rows is not None and over == "layer" else None
        found = reference_of(values, is_there)
        found = found if pool is None else pool.first(found)
        reference = reference_with_past(found, past)
    if past is not None:
        past = measured_from(past, reference)
    a = a - reference
    if over == "layer" or rows is None:
        m, v = mean_and_variance(a, axis)
    else:
        is_there = rows[..., None]
        n = is_there.sum(1, keepdim=True)
        m = a.where(is_there, 0).sum(1, keepdim=True) / n
        v = (a - m).where(is_there, 0).square().sum(1, keepdim=True) / n
    w = a.new_ones(a.shape[0], 1, 1)
    if pool is not None:
        m, v = pool.statistics(m, v)
        w = w * pool.total
    elif over == "batch":
        w = w * a.shape[1] if rows is None else rows.sum(1)[:, None, None].to(a.dtype)
    if past is None:
        mean, var = window_statistics(m, v, w, window)
    else:
        weights = w.expand(-1, past.weights.shape[1], 1)
        means, variances = torch.cat((past.means, m)), torch.cat((past.variances, v))
        weights = torch.cat((past.weights, weights))
        mean, var = window_statistics(means, variances, weights, window)
        mean, var = mean[window - 1 :], var[window - 1 :]
    y = normalize(a, mean, var, gamma, beta, eps)
    return y if rows is None else y[rows], StepStatistics(reference, m, v, w, mean, var)


def normalize(
    a: Tensor, mean: Tensor, var: Tensor, gamma: Tensor | None, beta: Tensor | None, eps: float
) -> Tensor:
    """γ (a − μ)/√(σ² + ε) + β."""
    y = (a - mean) * (var + eps).rsqrt()
    y = y if gamma is None else y * gamma
    return y if beta is None else y + beta


def bessel_factor(w: Tensor, window: int, past: TimeWindow | None = None) -> Tensor:
    """What makes the variance of each window unbiased, (T, 1, 1); 1 for that of a single value.

    Arguments:
        w: The number of values of each step, (T, 1, 1).
        window: The number K of steps.
        past: The window before the first step.
    """
    weights = w if past is None else torch.cat((past.weights, w))
    n = sliding_sum(weights, window)[weights.shape[0] - w.shape[0] :]
    return n / (n - 1).clamp_min(1)


def check_over(over: str) -> None:
    """Raise unless ``over`` is one of the axes that statistics are taken over."""
    if over not in ("layer", "batch"):
        raise ValueError(f"expected over to be 'layer' or 'batch', got {over!r}")


class NormState(NamedTuple):
    """The state of :meth:`AssortedTimeNorm.step`: the window, and how many steps there were."""

    window: TimeWindow | None
    steps: int


class AssortedTimeNorm(nn.Module):
    r"""Assorted-time normalisation (ATN) of a sequence.

    .. math::
        y_t = \gamma \odot \frac{a_t - \mu_t}{\sqrt{\sigma_t^2 + \epsilon}} + \beta, \qquad
        \mu_t, \sigma_t^2 \text{ over the last } k_t = \min(t, K) \text{ steps}

    Over the layer, statistics are those of one example, over its units and the steps of the window.
    Over the batch, they are those of one unit, over the examples and the steps of the window;
    sequences that have ended are not counted. K = 1 is layer or batch normalisation of every step.
    A larger window, unlike these, preserves differences in scale between steps.

    The statistics cost the same for every K, in memory too: only means and variances are kept of
    the steps of a window. Gradients reach all steps of the window.

    Note:
        The papers do not say what the form over the batch does at inference. Here it uses, as batch
        normalisation does, the mean over training batches of the statistics that were used at each
        time step (:class:`~cayley.norms.PopulationStatistics`). Steps that only one sequence
        reaches do not count.

    References:
        Breaking Time Invariance: Assorted-Time Normalization for RNNs, Pospisil, Zadorozhnyy, Ye,
        2022.

    Arguments:
        features: The number F of units.
        window: The number K of steps.
        over: ``"layer"`` or ``"batch"``.
        eps: ε.
        affine: Whether there are γ and β, which start at 1 and 0.
        max_steps: Over the batch, the number of time steps that have population statistics of their
            own; all later steps share those of the last.
        device, dtype: The device and dtype of γ and β.

    Shapes:
        (T, B, F) ↦ (T, B, F), or a packed sequence ↦ a packed sequence.

    Example:
        >>> norm = AssortedTimeNorm(16, 10)
        >>> a = torch.randn(100, 8, 16)
        >>> y = norm(a)
        >>> state = None
        >>> for t, a_t in enumerate(a):
        ...     y_t, state = norm.step(a_t, state)
        >>> torch.testing.assert_close(y_t, y[-1])
    """

    gamma: Tensor | None
    beta: Tensor | None

    def __init__(
        self,
        features: int,
        window: int,
        *,
        over: Over = "layer",
        eps: float = 1e-5,
        affine: bool = True,
        max_steps: int = MAX_STEPS,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, size in (("features", features), ("window", window), ("max_steps", max_steps)):
            check_integer(name, size)
        check_over(over)
        check_number("AssortedTimeNorm", "eps", eps)
        self.features = features
        self.window = window
        self.over: Over = over
        self.eps = eps
        self.affine = affine
        self.max_steps = max_steps
        for name in ("gamma", "beta"):
            parameter = nn.Parameter(torch.empty(features, device=device, dtype=dtype))
            self.register_parameter(name, parameter if affine else None)
        self.population = None
        if over == "batch":
            self.population = PopulationStatistics(
                features, max_steps=max_steps, device=device, dtype=dtype
            )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set γ to 1 and β to 0, and clear the population statistics."""
        if self.gamma is not None and self.beta is not None:
            nn.init.ones_(self.gamma)
            nn.init.zeros_(self.beta)
        if self.population is not None:
            self.population.reset()

    def forward(self, input: Tensor | PackedSequence) -> Tensor | PackedSequence:
        """Normalise a whole sequence, starting with an empty window."""
        if isinstance(input, PackedSequence):
            a, batch_sizes, order, back = input
            y, _ = self._run(a, batch_sizes, None)
            return PackedSequence(y, batch_sizes, order, back)
        return self._run(input, None, None)[0]

    def step(self, a_t: Tensor, state: NormState | None = None) -> tuple[Tensor, NormState]:
        """One step of :meth:`forward`, for streams.

        Arguments:
            a_t: The values of one step, (B, F).
            state: The state that the previous step returned; None at the start.

        Returns:
            y of the step, (B, F), and the state after it: 2 (K − 1) numbers for each example, or
            for each unit over the batch. The given state is not changed.
        """
        if a_t.dim() != 2:
            raise ValueError(f"expected the values of one step, (B, F), got {tuple(a_t.shape)}")
        y, state = self._run(a_t[None], None, state)
        return y[0], state

    def _run(
        self, a: Tensor, batch_sizes: Tensor | None, state: NormState | None
    ) -> tuple[Tensor, NormState]:
        rank = 3 if batch_sizes is None else 2
        if a.dim() != rank or a.shape[-1] != self.features:
            shape = "(T, B, F)" if rank == 3 else "packed (N, F)"
            raise ValueError(
                f"expected {shape} with F = {self.features} features, got {tuple(a.shape)}"
            )
        if not a.is_floating_point():
            raise TypeError(f"expected real floating-point values, got {a.dtype}: call a.float()")
        if a.shape[0] == 0:
            raise RuntimeError("expected a sequence of at least one step, got none")
        past, seen = (None, 0) if state is None else state
        if past is not None:
            B = a.shape[1] if batch_sizes is None else int(batch_sizes[0])
            expected = (1, self.features) if self.over == "batch" else (B, 1)
            found = tuple(past.reference.shape)
            if found != expected:
                raise ValueError(
                    f"expected a state of statistics {expected}, got {found}: pass the state of "
                    "the same sequences, or None at their start"
                )
            if len(past.means) != self.window - 1:
                raise ValueError(
                    f"expected the state of a window of {self.window} steps, got that of "
                    f"{len(past.means) + 1}: pass what this norm returned, or None at the start"
                )
        dtype = a.dtype
        # half precision cannot hold the sum of a thousand values
        a = a.to(torch.promote_types(dtype, torch.float32))
        T = a.shape[0] if batch_sizes is None else len(batch_sizes)
        if self.population is not None and not self.training:
            steps = torch.arange(seen, seen + T, device=a.device)
            mean, var = (packed_table(x[:, None], batch_sizes) for x in self.population(steps))
            y = normalize(a, mean, var, self.gamma, self.beta, self.eps)
            return y.to(dtype), NormState(None, seen + T)
        pool = find_pool(self.population, a, batch_sizes)
        y, found = assorted_time_norm(
            a,
            self.gamma,
            self.beta,
            window=self.window,
            over=self.over,
            eps=self.eps,
            batch_sizes=batch_sizes,
            past=past,
            pool=pool,
        )
        if self.population is not None and (a.numel() or pool is not None):
            mean, var = found.mean + found.reference, found.var
            var = var * bessel_factor(found.w, self.window, past)
            sequences = a.shape[1] if batch_sizes is None else batch_sizes
            sequences = sequences if pool is None else pool.total
            self.population.update(mean[:, 0], var[:, 0], sequences, seen)
        window = None
        if batch_sizes is None:
            window = advance(past, found.reference, found.m, found.v, found.w, self.window, None)
        return y.to(dtype), NormState(window, seen + T)

    def extra_repr(self) -> str:
        """The sizes and whatever differs from the defaults."""
        parts = [f"{self.features}, {self.window}"]
        if self.over != "layer":
            parts.append(f"over={self.over!r}")
        if self.eps != 1e-5:
            parts.append(f"eps={self.eps}")
        if not self.affine:
            parts.append("affine=False")
        if self.max_steps != MAX_STEPS:
            parts.append(f"max_steps={self.max_steps}")
        return ", ".join(parts)
