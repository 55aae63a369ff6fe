"""The gradient of the LSTM recurrence, from its last step to its first."""

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from cayley.kernels.calls import LstmCall, LstmGradients, LstmStates, Site, WindowedCall
from cayley.kernels.operator import Found
from cayley.kernels.projection import projection_gradients
from cayley.kernels.steps import outer_products, previous_states, step_sizes
from cayley.norms.layouts import packed_table, step_mask
from cayley.norms.running import RunningAdjoint, window_counts

__all__ = ["SiteAdjoint", "lstm_gradient", "normalized", "plus", "with_references"]

# takes the gradients of the results, the results, the call, and the names of the needed gradients
Backward = Callable[[Any, Any, Any, Collection[str]], Found]


class SiteAdjoint:
    """The gradient of a normalisation, given step by step from the last to the first.

    Arguments:
        site: The normalisation.
        call: The call that it belongs to.
        sizes: The number of sequences at each step.
        zs: The normalised values of every step, before γ and β.
        statistics: Mean, variance, mean of the window and scale of every step, (4, T, G, ·).
        external: The gradient with respect to the statistics.
    """

    def __init__(
        self,
        site: Site,
        call: WindowedCall,
        sizes: list[int],
        zs: tuple[Tensor, ...],
        statistics: Tensor,
        external: Tensor | None,
    ) -> None:
        self.gamma, _, _, self.past, self.given = site
        self.weights, self.over_batch, self.eps = call.weights, call.over_batch, call.eps
        self.zs, self.statistics, self.external = zs, statistics, external
        self.window = call.window
        self.sums = RunningAdjoint(call.window)
        self.values = sizes if call.over_batch else [1] * len(sizes)
        known = None if site.past is None else call.weights
        self.counts = window_counts(self.values, call.window, known)

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
        # the rest after subtracting the mean of the step
        d = z / scale if offset is None else z / scale + offset
        return g + (dm + 2 * dv * d) / (B if self.over_batch else dy.shape[1])

    def parameters(self, dys: list[Tensor]) -> Found:
        """After the first step: gradients with respect to γ, β and past."""
        dy, z = torch.cat(dys), torch.cat(self.zs)
        return {"gamma": (dy * z).sum(0), "beta": dy.sum(0), "past": self._grad_past()}

    def _grad_past(self) -> Tensor | None:
        if self.past is None:
            return None
        if self.weights is None or self.given is not None or self.window == 1:
            return torch.zeros_like(self.past)
        P, Q, R = self.sums.before(self.statistics.shape[2]).unbind(1)
        d_m = self.weights * (P + 2 * (Q * self.past[0] - R))
        return torch.stack((d_m, self.weights * Q))


def with_references(backward: Backward) -> Backward:
    """The same gradients, and those with respect to the references of the means."""

    def run(gradients: Any, states: Any, call: Any, needed: Collection[str]) -> Found:
        found = backward(gradients, states, call, needed)
        for name in ("input", "recurrent", "cell"):
            if f"{name}_reference" in needed:
                found[f"{name}_reference"] = _reference_gradient(
                    getattr(states, name),
                    getattr(gradients, name),
                    found.get(f"{name}_past"),
                    call.batch_sizes,
                )
        return found

    return run


def _reference_gradient(
    statistics: Tensor,
    external: Tensor | None,
    grad_past: Tensor | None,
    batch_sizes: Tensor | None,
) -> Tensor:
    """The gradient with respect to a reference, of one network or of several.

    Arguments:
        statistics: The statistics of every step, (4, T, G, ·).
        external: The gradient with respect to them.
        grad_past: The gradient with respect to the past, (2, K − 1, G, ·).
        batch_sizes: The batch sizes of a packed sequence, (T).
    """
    result = statistics.new_zeros(*statistics.shape[:-4], *statistics.shape[-2:])
    if external is not None:
        means = external.select(-4, 0)
        if batch_sizes is not None and means.shape[1] == batch_sizes[0]:
            # not the zeros of sequences that have ended
            means = means.where(step_mask(batch_sizes, means.device)[..., None], 0)
        result = result - means.sum(-3)
    return result if grad_past is None else result + grad_past.select(-4, 0).sum(-3)


def lstm_gradient(
    gradients: LstmGradients, states: LstmStates, call: LstmCall, needed: Collection[str]
) -> Found:
    """Gradients of a call; those of x, W and U only if they are needed."""
    h, c, kept = states.h, states.c, states.kept
    h0, c0, W, batch_sizes, H = call.h0, call.c0, call.W, call.batch_sizes, call.h0.shape[1]
    sizes = step_sizes(h, batch_sizes)
    # with U, the input's contribution itself is not needed, only its shape
    x = call.x if call.U is None else kept
    z_x, y_x, z_c, y_c = x, x, c, c
    if call.input is not None:
        z_x = normalized(x, states.input, call.input, call)
        y_x = torch.addcmul(call.input.beta, z_x, call.input.gamma)
    if call.recurrent is None:
        i, f, g, o = kept.chunk(4, -1)
    else:
        y_h = torch.addcmul(call.recurrent.beta, kept, call.recurrent.gamma)
        i, f, g, o = (y_x + y_h).chunk(4, -1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    if call.cell is not None:
        z_c = normalized(c, states.cell, call.cell, call)
        y_c = torch.addcmul(call.cell.beta, z_c, call.cell.gamma)
    tanh_c = y_c.tanh()
    # all factors that the loop only multiplies by, for all steps together
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

    N_x, N_h, N_c = (
        None if site is None else SiteAdjoint(site, call, sizes, steps(z), own, external)
        for site, z, own, external in zip(
            call.sites(), (z_x, kept, z_c), states.statistics(), gradients.statistics(), strict=True
        )
    )
    dhs = steps(torch.zeros_like(h) if gradients.h is None else gradients.h)
    dcs = steps(torch.zeros_like(c) if gradients.c is None else gradients.c)
    fs, to_cells, to_os, to_tanhs = (steps(v) for v in (f, to_cell, to_o, to_tanh))
    dxs, das, deltas, dys = ([h0[:0]] * len(sizes) for _ in range(4))
    # nothing comes from beyond the last step
    carry_h, carry_c = h0[:0], c0[:0]
    for t in reversed(range(len(sizes))):
        dh = plus(dhs[t], carry_h)
        dys[t] = dh * to_tanhs[t]
        dc = plus(dcs[t] + (dys[t] if N_c is None else N_c.step(t, dys[t])), carry_c)
        gate_gradients = to_cells[t].view(-1, 3, H) * dc[:, None]
        deltas[t] = torch.cat((gate_gradients.flatten(1), dh * to_os[t]), 1)
        dxs[t] = deltas[t] if N_x is None else N_x.step(t, deltas[t])
        das[t] = deltas[t] if N_h is None else N_h.step(t, deltas[t])
        carry_h, carry_c = das[t] @ W, dc * fs[t]
    dx, da = torch.cat(dxs).view(x.shape), torch.cat(das).view(x.shape)
    found = {
        "h0": carry_h,
        "c0": carry_c,
        "W": outer_products(da, h, h0, batch_sizes, False) if "W" in needed else None,
        "b": None if call.b is None else da.flatten(0, -2).sum(0),
        **projection_gradients(dx, call.x, call.U, needed),
    }
    sites = {"input": (N_x, deltas), "recurrent": (N_h, deltas), "cell": (N_c, dys)}
    for name, (site, values) in sites.items():
        if site is not None:
            found |= {f"{name}_{key}": value for key, value in site.parameters(values).items()}
    return found


def plus(x: Tensor, carry: Tensor) -> Tensor:
    """A gradient plus what the next step adds, which has at most as many rows."""
    if len(carry) == len(x):
        return x + carry
    return torch.cat((x[: len(carry)] + carry, x[len(carry) :]))


def normalized(a: Tensor, statistics: Tensor, site: Site, call: WindowedCall) -> Tensor:
    """The normalised values before γ and β, in the layout of a."""
    if site.given is not None:
        mean, scale = site.given[0], (site.given[1] + call.eps).rsqrt()
    else:
        _, _, mean, scale = statistics
    if site.reference is not None:
        a = a - packed_table(site.reference.expand(mean.shape), call.batch_sizes)
    return (a - packed_table(mean, call.batch_sizes)) * packed_table(scale, call.batch_sizes)
