r"""The LSTM recurrence with normalised products and cells, and its gradient."""

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from cayley.norms.running import DefinedWindow, RunningWindow
from cayley.norms.windows import TimeWindow, coarse, mean_and_variance
from cayley.recurrences.lstm_gradient import lstm_gradient
from cayley.recurrences.steps import previous_states, step_sizes
from cayley.tracing import no_autocast, transforms_active

__all__ = ["NormSite", "States", "lstm", "lstm_loop"]


class NormSite(NamedTuple):
    """One normalisation inside the recurrence.

    Attributes:
        gamma: γ, (F).
        beta: β, (F).
        past: The window before the first step, over the layer; None for an empty one.
        given: Mean and variance to use in place of the sequence's own at each step, (T, 1, F), or
            (T, B, F) where the sequences differ.
    """

    gamma: Tensor
    beta: Tensor
    past: TimeWindow | None = None
    given: tuple[Tensor, Tensor] | None = None


class States(NamedTuple):
    r"""What a run gives.

    Attributes:
        h: The states of all steps, in the layout of x with H features.
        c: The cells of all steps, likewise.
        recurrent, cell: Of each normalisation its references, (B, 1), or (1, F) over the batch, and
            for each step: mean and variance of the step, mean of its window and
            :math:`1/\sqrt{\sigma^2 + \epsilon}`, (4, T, B, 1) or (4, T, 1, F), all means less
            the reference. The last two are for reading, and have no gradient. None where there is
            no normalisation, or its statistics are given.
    """

    h: Tensor
    c: Tensor
    recurrent: tuple[Tensor, Tensor] | None = None
    cell: tuple[Tensor, Tensor] | None = None


def lstm_loop(
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    W: Tensor,
    b: Tensor | None = None,
    *,
    recurrent: NormSite | None = None,
    cell: NormSite | None = None,
    window: int = 1,
    over: Literal["layer", "batch"] = "layer",
    eps: float = 1e-5,
    batch_sizes: Tensor | None = None,
) -> States:
    r"""The recurrence as the loop that defines it; :func:`lstm` computes the same.

    .. math::
        [i; f; g; o] &= x_t + N_h(W h_{t-1} + b) \\
        c_t &= \sigma(f) \odot c_{t-1} + \sigma(i) \odot \tanh(g) \\
        h_t &= \sigma(o) \odot \tanh(N_c(c_t))

    Each N is the identity, or normalises by the statistics of the last K steps, over the units of
    each example (all 4H of them together for :math:`N_h`) or over the examples for each unit.

    Note:
        The gates are stacked as torch does, input, forget, candidate, output. The documents stack
        them forget, input, output, candidate, which changes the order of the rows of W only.

        Time runs forwards. A layer that reads a sequence from its end turns it around, so that the
        windows run in the order of the recurrence too.

    References:
        Assorted-Time Normalization: section 3.4 of Pospisil's dissertation, 2023.
        Layer Normalization, Ba, Kiros, Hinton, 2016.

    Arguments:
        x: What the input contributes to each step, normalised where it is to be, (T, B, 4H); or
            the steps one after another, (N, 4H), with ``batch_sizes``.
        h0: The state before the first step, (B, H).
        c0: The cell before the first step, (B, H).
        W: The recurrent matrix, (4H, H).
        b: A bias inside of N, (4H).
        recurrent: The normalisation :math:`N_h`; None for the identity.
        cell: The normalisation :math:`N_c`; None for the identity.
        window: The number K of steps.
        over: ``"layer"`` or ``"batch"``.
        eps: The ε of both normalisations.
        batch_sizes: How many sequences have a step t, never increasing, (T), on the CPU.

    Returns:
        The states and cells of all steps, and the statistics.

    Example:
        >>> x, state, W = torch.zeros(3, 1, 4), torch.zeros(1, 1), torch.zeros(4, 1)
        >>> x[..., 1] = x[..., 2] = 50  # to forget nothing, and to add σ(0) tanh(50)
        >>> lstm_loop(x, state, state, W).c.flatten()
        tensor([0.5000, 1.0000, 1.5000])
    """
    check_lstm(x, h0, c0, W, batch_sizes, recurrent, cell)
    arguments = _arguments(
        x, h0, c0, W, b, recurrent, cell, window, over == "batch", eps, batch_sizes, True
    )
    return _states(_run(*arguments), arguments)


def lstm(
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    W: Tensor,
    b: Tensor | None = None,
    *,
    recurrent: NormSite | None = None,
    cell: NormSite | None = None,
    window: int = 1,
    over: Literal["layer", "batch"] = "layer",
    eps: float = 1e-5,
    batch_sizes: Tensor | None = None,
) -> States:
    r"""The recurrence of :func:`lstm_loop` as one operator with a gradient written by hand.

    The statistics cost the same whatever the window, and so does their gradient. With
    :math:`p_t` and :math:`q_t` the gradients with respect to mean and variance of the window of
    step t and :math:`n_t` the number of values in it, those with respect to mean and variance of
    step i are :math:`\sum_t (p_t + 2 q_t (m_i - \mu_t))/n_t` and :math:`\sum_t q_t/n_t`, over the
    K windows that step i is in. Gradients of gradients are those of the loop, and transforms of
    :mod:`torch.func` see a loop too. To ``torch.compile`` and ``torch.export`` it is a single node.

    Arguments and the result are those of :func:`lstm_loop`.

    Example:
        >>> x, h0, W = torch.randn(9, 2, 12), torch.zeros(2, 3), torch.randn(12, 3)
        >>> site = NormSite(torch.ones(12), torch.zeros(12))
        >>> h = lstm(x, h0, h0, W, recurrent=site, window=4).h
        >>> torch.testing.assert_close(h, lstm_loop(x, h0, h0, W, recurrent=site, window=4).h)
    """
    check_lstm(x, h0, c0, W, batch_sizes, recurrent, cell)
    arguments = _arguments(
        x, h0, c0, W, b, recurrent, cell, window, over == "batch", eps, batch_sizes, False
    )
    run = _run if transforms_active() else _lstm
    return _states(run(*arguments), arguments)


def check_lstm(
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    W: Tensor,
    batch_sizes: Tensor | None,
    recurrent: NormSite | None,
    cell: NormSite | None,
) -> None:
    """Raise unless the arguments of :func:`lstm` fit together."""
    H = W.shape[-1]
    if W.shape != (4 * H, H) or x.shape[-1] != 4 * H or h0.shape[-1] != H or h0.shape != c0.shape:
        raise ValueError(
            "expected x (..., 4H), h0 and c0 (B, H) and W (4H, H), got "
            f"{tuple(x.shape)}, {tuple(h0.shape)}, {tuple(c0.shape)} and {tuple(W.shape)}"
        )
    if x.dim() != (3 if batch_sizes is None else 2) or x.shape[0] == 0:
        raise ValueError(
            "expected x of shape (T, B, 4H), or (N, 4H) with batch_sizes, of at least one step, "
            f"got {tuple(x.shape)}"
        )
    if batch_sizes is None and h0.shape[0] != x.shape[1]:
        raise ValueError(f"expected h0 of {x.shape[1]} rows, one a sequence, got {h0.shape[0]}")
    for site, features in ((recurrent, 4 * H), (cell, H)):
        if site is not None and not site.gamma.shape == site.beta.shape == (features,):
            raise ValueError(
                f"expected gamma and beta of {features} features, got {tuple(site.gamma.shape)} "
                f"and {tuple(site.beta.shape)}"
            )


def _arguments(
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    W: Tensor,
    b: Tensor | None,
    recurrent: NormSite | None,
    cell: NormSite | None,
    window: int,
    over_batch: bool,
    eps: float,
    batch_sizes: Tensor | None,
    by_definition: bool,
) -> tuple:
    """The arguments as the operator takes them."""
    tensors: list[list[Tensor | None]] = []
    weights = None
    for site in (recurrent, cell):
        if site is None:
            tensors.append([None] * 5)
            continue
        reference = past = None
        if site.given is None and window > 1:
            # the first step's mean takes away what all steps have in common
            start = c0 if site is cell else h0 @ W.mT if b is None else torch.addmm(b, h0, W.mT)
            reference = coarse(start.mean(0 if over_batch else 1, keepdim=True))
            if site.past is not None:
                weights = site.past.weights
                reference = torch.where(weights[-1] > 0, site.past.reference, reference)
                past = torch.stack((site.past.means, site.past.variances))
        given = None if site.given is None else torch.stack(site.given)
        tensors.append([site.gamma, site.beta, reference, past, given])
    options = (weights, batch_sizes, window, over_batch, eps, by_definition)
    return x, h0, c0, W, b, *tensors[0], *tensors[1], *options


def _states(outputs: tuple[Tensor, ...], arguments: tuple) -> States:
    h, c, _, _, *statistics = outputs
    references = arguments[7], arguments[12]
    sites = [
        (torch.zeros_like(values[0, 0]) if reference is None else reference, values)
        if values.dim() == 4
        else None
        for reference, values in zip(references, statistics, strict=True)
    ]
    return States(h, c, *sites)


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
            self.steps.append((m, v, mean, scale))
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


def _run(
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    W: Tensor,
    b: Tensor | None,
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
    batch_sizes: Tensor | None,
    window: int,
    over_batch: bool,
    eps: float,
    by_definition: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """All h, c, gates, normalised products, and the statistics of both normalisations."""
    kind = DefinedWindow if by_definition else RunningWindow
    options = (weights, window, over_batch, eps)
    N_h = N_c = None
    if gamma_h is not None and beta_h is not None:
        N_h = _Site(kind, gamma_h, beta_h, reference_h, past_h, given_h, *options)
    if gamma_c is not None and beta_c is not None:
        N_c = _Site(kind, gamma_c, beta_c, reference_c, past_c, given_c, *options)
    sizes = step_sizes(x, batch_sizes)
    hs, cs, gates, zs = [], [], [], []
    # a contiguous transpose makes every one of the T products faster
    Wt = W.mT.contiguous()
    h, c = h0, c0
    for t, x_t in enumerate(x.reshape(-1, x.shape[-1]).split(sizes)):
        h, c = h[: sizes[t]], c[: sizes[t]]
        if N_h is None:
            a = torch.addmm(x_t if b is None else x_t + b, h, Wt)
        else:
            z, y = N_h.step(t, h @ Wt if b is None else torch.addmm(b, h, Wt))
            zs.append(z)
            a = x_t + y
        i, f, g, o = a.chunk(4, -1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        c = torch.addcmul(f * c, i, g)
        h = o * (c if N_c is None else N_c.step(t, c)[1]).tanh()
        hs.append(h)
        cs.append(c)
        gates.append(torch.cat((i, f, g, o), -1))
    shape = (*x.shape[:-1], h0.shape[-1])
    return (
        torch.cat(hs).view(shape),
        torch.cat(cs).view(shape),
        torch.cat(gates).view(x.shape),
        torch.cat(zs).view(x.shape) if zs else x.new_empty(0),
        x.new_empty(0) if N_h is None else N_h.statistics(),
        x.new_empty(0) if N_c is None else N_c.statistics(),
    )


_lstm = torch.library.custom_op("cayley::lstm", _run, mutates_args=())
_lstm_backward = torch.library.custom_op("cayley::lstm_backward", lstm_gradient, mutates_args=())


@_lstm.register_fake
def _(
    x, h0, c0, W, b,
    gamma_h, beta_h, reference_h, past_h, given_h,
    gamma_c, beta_c, reference_c, past_c, given_c,
    weights, batch_sizes, window, over_batch, eps, by_definition,
):  # fmt: skip
    B, H = h0.shape
    T = x.shape[0] if batch_sizes is None else batch_sizes.shape[0]

    def statistics(gamma: Tensor | None, given: Tensor | None) -> Tensor:
        if gamma is None or given is not None:
            return x.new_empty(0)
        return x.new_empty(4, T, 1, gamma.shape[0]) if over_batch else x.new_empty(4, T, B, 1)

    return (
        x.new_empty(*x.shape[:-1], H),
        x.new_empty(*x.shape[:-1], H),
        x.new_empty(x.shape),
        x.new_empty(0) if gamma_h is None else x.new_empty(x.shape),
        statistics(gamma_h, given_h),
        statistics(gamma_c, given_c),
    )


@_lstm_backward.register_fake
def _(
    grad_h, grad_c, grad_statistics_h, grad_statistics_c,
    h, c, gates, z, statistics_h, statistics_c, h0, c0, W,
    gamma_h, past_h, given_h, gamma_c, beta_c, reference_c, past_c, given_c,
    weights, batch_sizes, window, over_batch, eps,
):  # fmt: skip
    def like(tensor: Tensor | None) -> Tensor:
        return h.new_empty(0 if tensor is None else tensor.shape)

    references = [
        h.new_empty(s.shape[2:] if s.dim() == 4 else (0,)) for s in (statistics_h, statistics_c)
    ]
    return (
        like(gates),
        like(gates),
        like(h0),
        like(c0),
        like(gamma_h),
        references[0],
        like(past_h),
        like(gamma_c),
        like(gamma_c),
        references[1],
        like(past_c),
    )


def _save(ctx, inputs, output):
    *tensors, ctx.window, ctx.over_batch, ctx.eps, _ = inputs
    ctx.inputs = len(tensors)
    ctx.save_for_backward(*tensors, *output)
    # statistics have a gradient only where a stream goes on
    ctx.set_materialize_grads(False)


def _differentiate(ctx, *gradients):
    # read once: activation checkpointing gives them out once
    saved = ctx.saved_tensors
    with no_autocast(saved[0].device):
        return _gradients(ctx, saved, gradients)


def _gradients(ctx, saved, gradients):
    options = (ctx.window, ctx.over_batch, ctx.eps)
    inputs, outputs = saved[: ctx.inputs], saved[ctx.inputs :]
    if torch.is_grad_enabled():
        return *_differentiate_loop(ctx, inputs, gradients, options), *(None,) * 4
    (x, h0, c0, W, b, gamma_h, beta_h, reference_h, past_h, given_h) = inputs[:10]
    (gamma_c, beta_c, reference_c, past_c, given_c, weights, batch_sizes) = inputs[10:]
    h, c, *_ = outputs
    grad_h, grad_c, _, _, *grad_statistics = gradients
    delta, da, d_h0, d_c0, d_gamma_h, d_reference_h, d_past_h, *d_cell = _lstm_backward(
        torch.zeros_like(h) if grad_h is None else grad_h,
        torch.zeros_like(c) if grad_c is None else grad_c,
        *grad_statistics,
        *outputs,
        h0,
        c0,
        W,
        gamma_h,
        past_h,
        given_h,
        gamma_c,
        beta_c,
        reference_c,
        past_c,
        given_c,
        weights,
        batch_sizes,
        *options,
    )
    d_gamma_c, d_beta_c, d_reference_c, d_past_c = d_cell
    rows = da.flatten(0, -2)
    d_W = None
    if ctx.needs_input_grad[3]:
        before = previous_states(h, h0, batch_sizes, False)
        d_W = rows.mT @ before.flatten(0, -2)
    d_b = None if b is None else rows.sum(0)
    d_beta_h = None if beta_h is None else delta.flatten(0, -2).sum(0)
    found = (
        (x, delta), (h0, d_h0), (c0, d_c0), (W, d_W), (b, d_b),
        (gamma_h, d_gamma_h), (beta_h, d_beta_h), (reference_h, d_reference_h), (past_h, d_past_h),
        (given_h, None),
        (gamma_c, d_gamma_c), (beta_c, d_beta_c), (reference_c, d_reference_c), (past_c, d_past_c),
    )  # fmt: skip
    return *(None if tensor is None else gradient for tensor, gradient in found), *(None,) * 7


def _differentiate_loop(ctx, inputs, gradients, options):
    """Gradients that can be differentiated again: those of the loop, whose steps are recorded."""
    # an alias for each argument keeps apart those that are one tensor
    aliases: list[Any] = [None if tensor is None else tensor.view_as(tensor) for tensor in inputs]
    wanted = [k for k, needed in enumerate(ctx.needs_input_grad[: len(inputs)]) if needed]
    outputs = _run(*aliases, *options, by_definition=True)
    used = [k for k, gradient in enumerate(gradients) if gradient is not None]
    found = torch.autograd.grad(
        [outputs[k] for k in used],
        [aliases[k] for k in wanted],
        [gradients[k] for k in used],
        create_graph=True,
        allow_unused=True,
    )
    results: list[Tensor | None] = [None] * len(inputs)
    for k, gradient in zip(wanted, found, strict=True):
        results[k] = gradient
    return results


_lstm.register_autograd(_differentiate, setup_context=_save)
