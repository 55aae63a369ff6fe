"""The gradient of the LSTM recurrence, from its last step to its first."""

import torch
from torch import Tensor

from cayley.norms.layouts import laid_out
from cayley.norms.running import RunningAdjoint, window_counts
from cayley.recurrences.steps import previous_states, step_sizes

__all__ = ["lstm_gradient"]


class _SiteAdjoint:
    """The gradient of a normalisation, given step by step from the last to the first.

    Arguments:
        gamma: γ, (F).
        zs: The normalised values of every step, before γ and β.
        statistics: Mean, variance, mean of the window and scale of every step, (4, T, G, ·).
        past: Mean and variance of the K − 1 steps before the first, (2, K − 1, G, ·).
        given: Mean and variance that were used in place of the statistics, (2, T, 1 or B, F).
        weights: The number of values behind the past, (K − 1, G, 1).
        sizes: The number of sequences at each step.
        window: The number K of steps.
        over_batch: Whether statistics are taken over the batch.
        eps: ε.
        external: The gradient with respect to the statistics.
    """

    def __init__(
        self,
        gamma: Tensor,
        zs: tuple[Tensor, ...],
        statistics: Tensor,
        past: Tensor | None,
        given: Tensor | None,
        weights: Tensor | None,
        sizes: list[int],
        window: int,
        over_batch: bool,
        eps: float,
        external: Tensor | None,
    ) -> None:
        self.gamma, self.zs, self.statistics, self.given = gamma, zs, statistics, given
        self.past, self.weights, self.over_batch, self.eps = past, weights, over_batch, eps
        self.external, self.sizes, self.window = external, sizes, window
        self.sums = RunningAdjoint(window)
        self.values = sizes if over_batch else [1] * len(sizes)
        self.counts = window_counts(self.values, window, None if past is None else weights)

    def step(self, t: int, dy: Tensor) -> Tensor:
        """The gradient with respect to the values that were normalised, from that of the result."""
        B = len(dy)
        g = dy * self.gamma
        if self.given is not None:
            return g * (self.given[1, t, :B] + self.eps).rsqrt()
        m, _, mean, scale = self.statistics[:, t, :B]
        z, axis = self.zs[t], 0 if self.over_batch else 1
        g = g * scale
        p = -g.sum(axis, keepdim=True)
        q = -0.5 * scale * (g * z).sum(axis, keepdim=True)
        dm, dv, offset = p, q, None
        if self.window > 1:
            n, w = self.counts[t], self.values[t]
            n = n[:B] if isinstance(n, Tensor) else n
            P, Q, R = self.sums.push(t, torch.stack((p, q, q * mean)) / n)
            dm, dv, offset = w * (P + 2 * (Q * m - R)), w * Q, mean - m
        if self.external is not None:
            dm = dm + self.external[0, t, :B]
            dv = dv + self.external[1, t, :B]
        # what is left after the mean of the step is taken away
        d = z / scale if offset is None else z / scale + offset
        return g + (dm + 2 * dv * d) / (B if self.over_batch else dy.shape[1])

    def before(self) -> tuple[Tensor, Tensor]:
        """After the first step: gradients with respect to the reference and the past."""
        if self.given is not None or not self.statistics.numel():
            empty = self.gamma.new_zeros(0)
            return empty, empty
        G = self.statistics.shape[2]
        d_reference = self.gamma.new_zeros(self.statistics.shape[2:])
        if self.external is not None:
            # means that are there, not the zeros of sequences that have ended
            for t, B in enumerate(self.sizes):
                d_reference[:B] -= self.external[0, t, :B]
        if self.past is None or self.weights is None:
            return d_reference, self.gamma.new_zeros(0)
        if self.window == 1:
            return d_reference, torch.zeros_like(self.past)
        P, Q, R = self.sums.before(G).unbind(1)
        d_m = self.weights * (P + 2 * (Q * self.past[0] - R))
        return d_reference + d_m.sum(0), torch.stack((d_m, self.weights * Q))


def lstm_gradient(
    grad_h: Tensor,
    grad_c: Tensor,
    grad_statistics_h: Tensor | None,
    grad_statistics_c: Tensor | None,
    h: Tensor,
    c: Tensor,
    gates: Tensor,
    z: Tensor,
    statistics_h: Tensor,
    statistics_c: Tensor,
    h0: Tensor,
    c0: Tensor,
    W: Tensor,
    gamma_h: Tensor | None,
    past_h: Tensor | None,
    given_h: Tensor | None,
    gamma_c: Tensor | None,
    beta_c: Tensor | None,
    reference_c: Tensor | None,
    past_c: Tensor | None,
    given_c: Tensor | None,
    weights: Tensor | None,
    batch_sizes: Tensor | None,
    window: int,
    over_batch: bool,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients with respect to x, W h + b, h0, c0; then γ, reference and past of both sites.

    Those of the cell's normalisation have β in them too, after γ. What is not there has an empty
    gradient.
    """
    H = h0.shape[1]
    sizes = step_sizes(h, batch_sizes)
    i, f, g, o = gates.chunk(4, -1)
    z_c, y_c = None, c
    if gamma_c is not None and beta_c is not None:
        z_c = _normalized_cells(c, statistics_c, reference_c, given_c, batch_sizes, eps)
        y_c = torch.addcmul(beta_c, z_c, gamma_c)
    tanh_c = y_c.tanh()
    # everything that the loop only multiplies by, at once
    to_cell = torch.cat(
        (
            g * i * (1 - i),
            previous_states(c, c0, batch_sizes, False) * f * (1 - f),
            i * (1 - g * g),
        ),
        -1,
    )
    to_o, to_tanh = tanh_c * o * (1 - o), o * (1 - tanh_c * tanh_c)

    def steps(tensor: Tensor) -> tuple[Tensor, ...]:
        return tensor.reshape(-1, tensor.shape[-1]).split(sizes)

    options = (weights, sizes, window, over_batch, eps)
    N_h = N_c = None
    if gamma_h is not None:
        N_h = _SiteAdjoint(
            gamma_h, steps(z), statistics_h, past_h, given_h, *options, grad_statistics_h
        )
    if z_c is not None and gamma_c is not None:
        N_c = _SiteAdjoint(
            gamma_c, steps(z_c), statistics_c, past_c, given_c, *options, grad_statistics_c
        )
    dhs, dcs = steps(grad_h), steps(grad_c)
    fs, to_cells, to_os, to_tanhs = (steps(v) for v in (f, to_cell, to_o, to_tanh))
    deltas, das, dys = ([torch.empty(0)] * len(sizes) for _ in range(3))
    # nothing comes from beyond the last step
    carry_h, carry_c = h0[:0], c0[:0]
    for t in reversed(range(len(sizes))):
        dh = _plus(dhs[t], carry_h)
        dys[t] = dh * to_tanhs[t]
        dc = _plus(dcs[t] + (dys[t] if N_c is None else N_c.step(t, dys[t])), carry_c)
        gate_gradients = to_cells[t].view(-1, 3, H) * dc[:, None]
        deltas[t] = torch.cat((gate_gradients.flatten(1), dh * to_os[t]), 1)
        das[t] = deltas[t] if N_h is None else N_h.step(t, deltas[t])
        carry_h, carry_c = das[t] @ W, dc * fs[t]
    delta, da, dy = torch.cat(deltas), torch.cat(das), torch.cat(dys)
    empty = h.new_zeros(0)
    d_reference_h, d_past_h = (empty, empty) if N_h is None else N_h.before()
    d_reference_c, d_past_c = (empty, empty) if N_c is None else N_c.before()
    return (
        delta.view(gates.shape),
        da.view(gates.shape),
        carry_h,
        carry_c,
        empty if N_h is None else (delta * z.view_as(delta)).sum(0),
        d_reference_h.clone(),
        d_past_h.clone(),
        empty.clone() if z_c is None else (dy * z_c.reshape(-1, H)).sum(0),
        empty.clone() if z_c is None else dy.sum(0),
        d_reference_c.clone(),
        d_past_c.clone(),
    )


def _plus(x: Tensor, carry: Tensor) -> Tensor:
    """A gradient with what comes from the next step, which has no more rows."""
    if len(carry) == len(x):
        return x + carry
    return torch.cat((x[: len(carry)] + carry, x[len(carry) :]))


def _normalized_cells(
    c: Tensor,
    statistics: Tensor,
    reference: Tensor | None,
    given: Tensor | None,
    batch_sizes: Tensor | None,
    eps: float,
) -> Tensor:
    """N_c(c) before γ and β, in the layout of c."""
    if given is not None:
        mean, scale = given[0], (given[1] + eps).rsqrt()
    else:
        mean, scale = statistics[2:]
    if reference is not None:
        c = c - laid_out(reference.expand(mean.shape), batch_sizes)
    return (c - laid_out(mean, batch_sizes)) * laid_out(scale, batch_sizes)
