"""The LSTM recurrence, from its first step to its last."""

import torch
from torch import Tensor

from cayley.kernels.calls import LstmCall, LstmStates, Site, WindowedCall
from cayley.kernels.projection import project
from cayley.kernels.steps import step_sizes
from cayley.norms.atn import assorted_time_norm, normalize
from cayley.norms.layouts import packed_table, step_mask
from cayley.norms.pooling import Pool
from cayley.norms.running import DefinedWindow, RunningWindow
from cayley.norms.windows import TimeWindow, mean_and_variance

__all__ = ["SiteSteps", "lstm_forward", "normalized_input"]


class SiteSteps:
    """A normalisation, step by step.

    Arguments:
        site: The normalisation.
        call: The call that it belongs to.
        by_definition: Whether every window is summed from scratch.
        pool: Computes statistics over the batch over all processes; None for this one alone.
    """

    def __init__(
        self, site: Site, call: WindowedCall, by_definition: bool, pool: Pool | None = None
    ) -> None:
        self.pool = pool
        self.gamma, self.beta, self.reference, _, self.given = site
        self.over_batch, self.eps = call.over_batch, call.eps
        kind = DefinedWindow if by_definition else RunningWindow
        self.window = kind(call.window, _past(site, call))
        self.steps: list[tuple[Tensor, ...]] = []

    def step(self, t: int, a: Tensor) -> tuple[Tensor, Tensor]:
        """The normalised values before and after γ and β."""
        if self.given is not None:
            mean, var = self.given[:, t, : len(a)]
            z = (a - mean) * (var + self.eps).rsqrt()
        else:
            if self.reference is not None:
                a = a - self.reference[: len(a)]
            m, v = mean_and_variance(a, 0 if self.over_batch else 1)
            count = len(a) if self.over_batch else 1
            if self.pool is not None:
                m, v = self.pool.statistics(m, v)
                count = self.pool.total
            mean, var = self.window.push(m, v, count)
            scale = (var + self.eps).rsqrt()
            z = (a - mean) * scale
            # the last two are for information
            self.steps.append((m, v, mean.detach(), scale.detach()))
        return z, torch.addcmul(self.beta, z, self.gamma)

    def statistics(self) -> Tensor:
        """The statistics of all steps, (4, T, G, ·), with 0 for sequences that have ended."""
        if not self.steps:
            return self.gamma.new_empty(0)
        G = len(self.steps[0][0])
        steps = [torch.stack(step) for step in self.steps]
        steps = [torch.cat((x, x.new_zeros(4, G - x.shape[1], x.shape[2])), 1) for x in steps]
        return torch.stack(steps, 1)


def _past(site: Site, call: WindowedCall) -> TimeWindow | None:
    if site.past is None or site.reference is None or call.weights is None:
        return None
    means, variances = site.past
    return TimeWindow(site.reference, means, variances, call.weights)


def lstm_forward(
    call: LstmCall, *, by_definition: bool = False, pool: Pool | None = None
) -> LstmStates:
    """Run an LSTM.

    Arguments:
        call: The call.
        by_definition: Whether every window is summed from scratch, rather than updated.
        pool: Computes statistics over the batch over all processes; None for this one alone.
    """
    b, x, statistics_x = call.b, project(call.x, call.U, None), call.x.new_empty(0)
    N_h, N_c = (
        None if site is None else SiteSteps(site, call, by_definition, pool)
        for site in (call.recurrent, call.cell)
    )
    if call.input is not None:
        x, statistics_x = normalized_input(x, call.input, call, pool)
    if N_h is None and b is not None:
        x = x + b
    sizes = step_sizes(x, call.batch_sizes)
    hs, cs, kept = [], [], []
    # a contiguous transpose makes each of the T products faster
    Wt = call.W.mT.contiguous()
    h, c = call.h0, call.c0
    for t, x_t in enumerate(x.reshape(-1, x.shape[-1]).split(sizes)):
        h, c = h[: sizes[t]], c[: sizes[t]]
        if N_h is None:
            a = torch.addmm(x_t, h, Wt)
        else:
            z, y = N_h.step(t, h @ Wt if b is None else torch.addmm(b, h, Wt))
            kept.append(z)
            a = x_t + y
        i, f, g, o = a.chunk(4, -1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        c = torch.addcmul(f * c, i, g)
        h = o * (c if N_c is None else N_c.step(t, c)[1]).tanh()
        hs.append(h)
        cs.append(c)
        if N_h is None:
            kept.append(torch.cat((i, f, g, o), -1))
    shape = (*x.shape[:-1], call.h0.shape[-1])
    return LstmStates(
        torch.cat(hs).view(shape),
        torch.cat(cs).view(shape),
        torch.cat(kept).view(x.shape),
        statistics_x,
        x.new_empty(0) if N_h is None else N_h.statistics(),
        x.new_empty(0) if N_c is None else N_c.statistics(),
    )


def normalized_input(
    x: Tensor, site: Site, call: WindowedCall, pool: Pool | None = None
) -> tuple[Tensor, Tensor]:
    """N_x of all steps at once, and its statistics."""
    gamma, beta, batch_sizes, eps = site.gamma, site.beta, call.batch_sizes, call.eps
    if site.given is not None:
        mean, var = (packed_table(table, batch_sizes) for table in site.given)
        return normalize(x, mean, var, gamma, beta, eps), x.new_empty(0)
    y, found = assorted_time_norm(
        *(x, gamma, beta),
        window=call.window,
        over="batch" if call.over_batch else "layer",
        eps=eps,
        batch_sizes=batch_sizes,
        past=_past(site, call),
        reference=x.new_zeros(()) if site.reference is None else site.reference,
        pool=pool,
    )
    used = found.mean.detach(), (found.var.detach() + eps).rsqrt()
    statistics = torch.stack((found.m, found.v, *used))
    if batch_sizes is not None and not call.over_batch:
        statistics = statistics.where(step_mask(batch_sizes, x.device)[..., None], 0)
    return y, statistics
