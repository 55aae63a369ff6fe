"""The gradient of the LSTM recurrence, from its last step to its first."""

from collections.abc import Sequence

import torch
from torch import Tensor

from cayley.kernels.projection import projection_gradients
from cayley.kernels.steps import outer_products, previous_states, step_sizes
from cayley.norms.layouts import packed_table, step_mask
from cayley.norms.running import RunningAdjoint, window_counts

__all__ = ["lstm_gradient", "reference_gradient"]


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
        self.external, self.window = external, window
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

    def parameters(self, dys: list[Tensor]) -> list[Tensor]:
        """After the first step: gradients with respect to γ, β and past."""
        dy, z = torch.cat(dys), torch.cat(self.zs)
        return [(dy * z).sum(0), dy.sum(0), self._grad_past()]

    def _grad_past(self) -> Tensor:
        if self.past is None or self.weights is None or self.given is not None:
            return self.gamma.new_zeros(0 if self.past is None else self.past.shape)
        if self.window == 1:
            return torch.zeros_like(self.past)
        P, Q, R = self.sums.before(self.statistics.shape[2]).unbind(1)
        d_m = self.weights * (P + 2 * (Q * self.past[0] - R))
        return torch.stack((d_m, self.weights * Q))


def reference_gradient(
    statistics: Tensor, external: Tensor | None, grad_past: Tensor, batch_sizes: Tensor | None
) -> Tensor:
    """The gradient with respect to what all means are measured from.

    Arguments:
        statistics: Of every step, (4, T, G, ·).
        external: The gradient with respect to them.
        grad_past: The gradient with respect to the past, (2, K − 1, G, ·), or empty.
        batch_sizes: Of a packed sequence, (T).
    """
    result = statistics.new_zeros(statistics.shape[2:])
    if external is not None:
        means = external[0]
        if batch_sizes is not None and means.shape[1] == batch_sizes[0]:
            # not the zeros of sequences that have ended
            means = means.where(step_mask(batch_sizes, means.device)[..., None], 0)
        result = result - means.sum(0)
    return result + grad_past[0].sum(0) if grad_past.dim() == 4 else result


def lstm_gradient(
    grad_h: Tensor | None,
    grad_c: Tensor | None,
    grad_statistics_x: Tensor | None,
    grad_statistics_h: Tensor | None,
    grad_statistics_c: Tensor | None,
    h: Tensor,
    c: Tensor,
    kept: Tensor,
    statistics_x: Tensor,
    statistics_h: Tensor,
    statistics_c: Tensor,
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    W: Tensor,
    b: Tensor | None,
    gamma_x: Tensor | None,
    beta_x: Tensor | None,
    reference_x: Tensor | None,
    past_x: Tensor | None,
    given_x: Tensor | None,
    gamma_h: Tensor | None,
    beta_h: Tensor | None,
    reference_h: Tensor | None,
    past_h: Tensor | None,
    given_h: Tensor | None,
    gamma_c: Tensor | None,
    beta_c: Tensor | None,
    reference_c: Tensor | None,
    past_c: Tensor | None,
    given_c: Tensor | None,
    weights: Tensor | None,
    U: Tensor | None,
    batch_sizes: Tensor | None,
    window: int,
    over_batch: bool,
    eps: float,
    wanted: Sequence[bool],
    backend: str,
) -> list[Tensor]:
    """Gradients, from those of the outputs, the outputs and the inputs of the recurrence.

    They are those with respect to x, h0, c0, W and b; then γ, β and past of each normalisation;
    then U. Those of x, W and U may not be ``wanted``. What is not there, or not wanted, has an
    empty gradient.
    """
    input = x
    if U is not None:
        x = kept  # what the input contributed has this shape, and its values are not needed
    H = h0.shape[1]
    sizes = step_sizes(h, batch_sizes)
    z_x, y_x, z_c, y_c = None, x, None, c
    if gamma_x is not None and beta_x is not None:
        z_x = _normalized(x, statistics_x, reference_x, given_x, batch_sizes, eps)
        y_x = torch.addcmul(beta_x, z_x, gamma_x)
    if gamma_h is None or beta_h is None:
        i, f, g, o = kept.chunk(4, -1)
    else:
        i, f, g, o = (y_x + torch.addcmul(beta_h, kept, gamma_h)).chunk(4, -1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    if gamma_c is not None and beta_c is not None:
        z_c = _normalized(c, statistics_c, reference_c, given_c, batch_sizes, eps)
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
    N_x = N_h = N_c = None
    if gamma_x is not None and z_x is not None:
        N_x = _SiteAdjoint(
            gamma_x, steps(z_x), statistics_x, past_x, given_x, *options, grad_statistics_x
        )
    if gamma_h is not None:
        N_h = _SiteAdjoint(
            gamma_h, steps(kept), statistics_h, past_h, given_h, *options, grad_statistics_h
        )
    if z_c is not None and gamma_c is not None:
        N_c = _SiteAdjoint(
            gamma_c, steps(z_c), statistics_c, past_c, given_c, *options, grad_statistics_c
        )
    dhs = steps(torch.zeros_like(h) if grad_h is None else grad_h)
    dcs = steps(torch.zeros_like(c) if grad_c is None else grad_c)
    fs, to_cells, to_os, to_tanhs = (steps(v) for v in (f, to_cell, to_o, to_tanh))
    dxs, das, deltas, dys = ([h0[:0]] * len(sizes) for _ in range(4))
    # nothing comes from beyond the last step
    carry_h, carry_c = h0[:0], c0[:0]
    for t in reversed(range(len(sizes))):
        dh = _plus(dhs[t], carry_h)
        dys[t] = dh * to_tanhs[t]
        dc = _plus(dcs[t] + (dys[t] if N_c is None else N_c.step(t, dys[t])), carry_c)
        gate_gradients = to_cells[t].view(-1, 3, H) * dc[:, None]
        deltas[t] = torch.cat((gate_gradients.flatten(1), dh * to_os[t]), 1)
        dxs[t] = deltas[t] if N_x is None else N_x.step(t, deltas[t])
        das[t] = deltas[t] if N_h is None else N_h.step(t, deltas[t])
        carry_h, carry_c = das[t] @ W, dc * fs[t]
    dx, da = torch.cat(dxs), torch.cat(das)
    empty = h.new_zeros(0)
    of_x, of_W, of_U = wanted
    grad_x, grad_U, _ = projection_gradients(dx.view(x.shape), input, U, (of_x, of_U, False))
    grad_W = outer_products(da.view(x.shape), h, h0, batch_sizes, False) if of_W else None
    result = [
        empty.clone() if grad_x is None else grad_x,
        *(carry_h, carry_c, h.new_empty(0, 0) if grad_W is None else grad_W),
        empty.clone() if b is None else da.sum(0),
    ]
    for site, gradients in ((N_x, deltas), (N_h, deltas), (N_c, dys)):
        result += [empty.clone() for _ in range(3)] if site is None else site.parameters(gradients)
    return [*result, h.new_empty(0, 0) if grad_U is None else grad_U]


def _plus(x: Tensor, carry: Tensor) -> Tensor:
    """A gradient with what comes from the next step, which has no more rows."""
    if len(carry) == len(x):
        return x + carry
    return torch.cat((x[: len(carry)] + carry, x[len(carry) :]))


def _normalized(
    a: Tensor,
    statistics: Tensor,
    reference: Tensor | None,
    given: Tensor | None,
    batch_sizes: Tensor | None,
    eps: float,
) -> Tensor:
    """What was normalised before γ and β, in the layout of a."""
    if given is not None:
        mean, scale = given[0], (given[1] + eps).rsqrt()
    else:
        mean, scale = statistics[2:]
    if reference is not None:
        a = a - packed_table(reference.expand(mean.shape), batch_sizes)
    return (a - packed_table(mean, batch_sizes)) * packed_table(scale, batch_sizes)
