"""The LSTM recurrence, from its first step to its last."""

import torch
from torch import Tensor

from cayley.kernels.dispatch import runs_on
from cayley.kernels.projection import project
from cayley.kernels.steps import step_sizes
from cayley.norms.atn import assorted_time_norm, normalize
from cayley.norms.layouts import packed_table, step_mask
from cayley.norms.running import DefinedWindow, RunningWindow
from cayley.norms.windows import TimeWindow, mean_and_variance

__all__ = ["lstm_forward"]


class _Site:
    """A normalisation, step by step."""

    def __init__(
        self,
        statistics: type[RunningWindow] | type[DefinedWindow],
        gamma: Tensor,
        beta: Tensor,
        reference: Tensor | None,
        past: Tensor | None,
        given: Tensor | None,
        weights: Tensor | None,
        window: int,
        over_batch: bool,
        eps: float,
    ) -> None:
        self.gamma, self.beta, self.reference, self.given = gamma, beta, reference, given
        self.over_batch, self.eps = over_batch, eps
        self.window = statistics(window, _window(reference, past, weights))
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
            mean, var = self.window.push(m, v, len(a) if self.over_batch else 1)
            scale = (var + self.eps).rsqrt()
            z = (a - mean) * scale
            # the last two are for reading
            self.steps.append((m, v, mean.detach(), scale.detach()))
        return z, torch.addcmul(self.beta, z, self.gamma)

    def statistics(self) -> Tensor:
        """All of them, (4, T, G, ·), with 0 for sequences that have ended."""
        if not self.steps:
            return self.gamma.new_empty(0)
        G = len(self.steps[0][0])
        steps = [torch.stack(step) for step in self.steps]
        steps = [torch.cat((x, x.new_zeros(4, G - x.shape[1], x.shape[2])), 1) for x in steps]
        return torch.stack(steps, 1)


def _window(
    reference: Tensor | None, past: Tensor | None, weights: Tensor | None
) -> TimeWindow | None:
    if past is None or reference is None or weights is None:
        return None
    means, variances = past
    return TimeWindow(reference, means, variances, weights)


def lstm_forward(
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
    by_definition: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """All h and c, what the gradient cannot find again, and the statistics of each normalisation.

    The third are the gates, or the normalised products, from which the gates follow.
    """
    runs_on("reference", backend, x, None)
    x = project(x, U, None)
    kind = DefinedWindow if by_definition else RunningWindow
    options = (weights, window, over_batch, eps)
    N_h = N_c = None
    if gamma_h is not None and beta_h is not None:
        N_h = _Site(kind, gamma_h, beta_h, reference_h, past_h, given_h, *options)
    if gamma_c is not None and beta_c is not None:
        N_c = _Site(kind, gamma_c, beta_c, reference_c, past_c, given_c, *options)
    statistics_x = x.new_empty(0)
    if gamma_x is not None:
        past = _window(reference_x, past_x, weights)
        x, statistics_x = _normalized_input(
            x, gamma_x, beta_x, reference_x, past, given_x, window, over_batch, eps, batch_sizes
        )
    if N_h is None and b is not None:
        x = x + b
    sizes = step_sizes(x, batch_sizes)
    hs, cs, kept = [], [], []
    # a contiguous transpose makes every one of the T products faster
    Wt = W.mT.contiguous()
    h, c = h0, c0
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
    shape = (*x.shape[:-1], h0.shape[-1])
    return (
        torch.cat(hs).view(shape),
        torch.cat(cs).view(shape),
        torch.cat(kept).view(x.shape),
        statistics_x,
        x.new_empty(0) if N_h is None else N_h.statistics(),
        x.new_empty(0) if N_c is None else N_c.statistics(),
    )


def _normalized_input(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor | None,
    reference: Tensor | None,
    past: TimeWindow | None,
    given: Tensor | None,
    window: int,
    over_batch: bool,
    eps: float,
    batch_sizes: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """N_x of all steps at once, and its statistics."""
    if given is not None:
        mean, var = (packed_table(table, batch_sizes) for table in given)
        return normalize(x, mean, var, gamma, beta, eps), x.new_empty(0)
    over = "batch" if over_batch else "layer"
    y, found = assorted_time_norm(
        *(x, gamma, beta),
        window=window,
        over=over,
        eps=eps,
        batch_sizes=batch_sizes,
        past=past,
        reference=x.new_zeros(()) if reference is None else reference,
    )
    used = found.mean.detach(), (found.var.detach() + eps).rsqrt()
    statistics = torch.stack((found.m, found.v, *used))
    if batch_sizes is not None and not over_batch:
        statistics = statistics.where(step_mask(batch_sizes, x.device)[..., None], 0)
    return y, statistics
