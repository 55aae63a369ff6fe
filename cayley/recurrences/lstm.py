r"""The LSTM recurrence with normalised products and cells, and its gradient."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from cayley.norms.windows import TimeWindow, coarse
from cayley.recurrences.at_once import at_once, differentiable_at_once
from cayley.recurrences.cpu import lstm as cpu
from cayley.recurrences.cpu import native
from cayley.recurrences.cuda import lstm as cuda
from cayley.recurrences.cuda.nvrtc import refused
from cayley.recurrences.cuda.references import references
from cayley.recurrences.dispatch import backend_in_force, runs_on
from cayley.recurrences.lstm_forward import lstm_forward
from cayley.recurrences.lstm_gradient import lstm_gradient, matrix_gradients, reference_gradient
from cayley.recurrences.projection import check_projection, project
from cayley.recurrences.steps import empty_gradient
from cayley.tracing import computes_now, no_autocast, transforms_active

__all__ = ["NormSite", "States", "lstm", "lstm_loop"]


class NormSite(NamedTuple):
    """One normalisation inside the recurrence.

    Attributes:
        gamma: γ, (F).
        beta: β, (F).
        past: The window before the first step, over the layer; None for an empty one.
        given: Mean and variance to use in place of the sequence's own at each step, (T, 1, F), or
            (T, B, F) where the sequences differ; steps beyond the sequence are not used.
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
        input, recurrent, cell: Of each normalisation its references, (B, 1), or (1, F) over the
            batch, and for each step: mean and variance of the step, mean of its window and
            :math:`1/\sqrt{\sigma^2 + \epsilon}`, (4, T, B, 1) or (4, T, 1, F), all means less
            the reference. The last two are for reading, and have no gradient. None where there is
            no normalisation, or its statistics are given.
    """

    h: Tensor
    c: Tensor
    input: tuple[Tensor, Tensor] | None = None
    recurrent: tuple[Tensor, Tensor] | None = None
    cell: tuple[Tensor, Tensor] | None = None


def lstm_loop(
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    W: Tensor,
    b: Tensor | None = None,
    *,
    U: Tensor | None = None,
    c: Tensor | None = None,
    input: NormSite | None = None,
    recurrent: NormSite | None = None,
    cell: NormSite | None = None,
    window: int = 1,
    over: Literal["layer", "batch"] = "layer",
    eps: float = 1e-5,
    batch_sizes: Tensor | None = None,
) -> States:
    r"""The recurrence as the loop that defines it; :func:`lstm` computes the same.

    .. math::
        [i; f; g; o] &= N_x(U x_t + c) + N_h(W h_{t-1} + b) \\
        c_t &= \sigma(f) \odot c_{t-1} + \sigma(i) \odot \tanh(g) \\
        h_t &= \sigma(o) \odot \tanh(N_c(c_t))

    Each N is the identity, or normalises by the statistics of the last K steps, over the units of
    each example (all 4H of them together for :math:`N_x` and :math:`N_h`) or over the examples for
    each unit.

    Note:
        The gates are stacked as torch does, input, forget, candidate, output. The documents stack
        them forget, input, output, candidate, which changes the order of the rows of W only.

        Time runs forwards. A layer that reads a sequence from its end turns it around, so that the
        windows run in the order of the recurrence too.

    References:
        Assorted-Time Normalization: section 3.4 of Pospisil's dissertation, 2023.
        Layer Normalization, Ba, Kiros, Hinton, 2016.

    Arguments:
        x: The input, (T, B, I), or without U what it contributes to each step, (T, B, 4H); or the
            steps one after another, (N, ·), with ``batch_sizes``.
        h0: The state before the first step, (B, H).
        c0: The cell before the first step, (B, H).
        W: The recurrent matrix, (4H, H).
        b: A bias inside of :math:`N_h`, (4H).
        U: The input's matrix, (4H, I); None where x is what the input contributes.
        c: A bias beside U, (4H).
        input: The normalisation :math:`N_x`; None for the identity.
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
    sites = (input, recurrent, cell)
    check_lstm(x, h0, c0, W, b, U, c, sites, window, over, batch_sizes)
    arguments = _arguments(x, h0, c0, W, b, U, c, sites, window, over == "batch", eps, batch_sizes)
    outputs = lstm_forward(*arguments, by_definition=True, backend="reference")
    return _states(outputs, arguments)


def lstm(
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    W: Tensor,
    b: Tensor | None = None,
    *,
    U: Tensor | None = None,
    c: Tensor | None = None,
    input: NormSite | None = None,
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
    sites = (input, recurrent, cell)
    check_lstm(x, h0, c0, W, b, U, c, sites, window, over, batch_sizes)
    arguments = _arguments(x, h0, c0, W, b, U, c, sites, window, over == "batch", eps, batch_sizes)
    if transforms_active():
        outputs = lstm_forward(*arguments, by_definition=False, backend="reference")
        return _states(outputs, arguments)
    inputs = (*arguments, False, backend_in_force())
    outputs = differentiable_at_once(_lstm, _KERNELS, _save, _differentiate, *inputs)
    return _states(outputs, arguments)


def check_lstm(
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    W: Tensor,
    b: Tensor | None,
    U: Tensor | None,
    c: Tensor | None,
    sites: tuple[NormSite | None, NormSite | None, NormSite | None],
    window: int,
    over: str,
    batch_sizes: Tensor | None,
) -> None:
    """Raise unless the arguments of :func:`lstm` fit together."""
    H = W.shape[-1]
    wrong_x = U is None and x.shape[-1] != 4 * H
    if W.shape != (4 * H, H) or wrong_x or h0.shape[-1] != H or h0.shape != c0.shape:
        raise ValueError(
            "expected x (..., 4H), h0 and c0 (B, H) and W (4H, H), got "
            f"{tuple(x.shape)}, {tuple(h0.shape)}, {tuple(c0.shape)} and {tuple(W.shape)}"
        )
    check_projection(x, U, c, 4 * H)
    if x.dim() != (3 if batch_sizes is None else 2) or x.shape[0] == 0:
        raise ValueError(
            "expected x of shape (T, B, ·), or (N, ·) with batch_sizes, of at least one step, got "
            f"{tuple(x.shape)}"
        )
    if batch_sizes is None and h0.shape[0] != x.shape[1]:
        raise ValueError(f"expected h0 of {x.shape[1]} rows, one a sequence, got {h0.shape[0]}")
    if b is not None and b.shape != (4 * H,):
        raise ValueError(f"expected b of {4 * H} numbers, got {tuple(b.shape)}")
    T = x.shape[0] if batch_sizes is None else batch_sizes.shape[0]
    for site, features in zip(sites, (4 * H, 4 * H, H), strict=True):
        if site is not None:
            _check_site(site, T, h0.shape[0], features, window, over)


def _check_site(site: NormSite, T: int, B: int, F: int, window: int, over: str) -> None:
    if not site.gamma.shape == site.beta.shape == (F,):
        raise ValueError(
            f"expected gamma and beta of {F} features, got {tuple(site.gamma.shape)} and "
            f"{tuple(site.beta.shape)}"
        )
    if site.given is not None:
        shapes = [tuple(table[:T].shape) for table in site.given]
        if shapes not in ([(T, 1, F)] * 2, [(T, B, F)] * 2):
            raise ValueError(f"expected given statistics ({T}, 1 or {B}, {F}), got {shapes}")
    if site.past is not None and window > 1:
        group = (B, 1) if over == "layer" else (1, F)
        steps = (window - 1, *group)
        shapes = [tuple(table.shape) for table in site.past]
        if shapes != [group, steps, steps, (*steps[:2], 1)]:
            raise ValueError(
                f"expected a past of a reference {group}, means and variances {steps} and weights "
                f"{(*steps[:2], 1)}, got {shapes}"
            )


def _arguments(
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    W: Tensor,
    b: Tensor | None,
    U: Tensor | None,
    c: Tensor | None,
    sites: tuple[NormSite | None, NormSite | None, NormSite | None],
    window: int,
    over_batch: bool,
    eps: float,
    batch_sizes: Tensor | None,
) -> tuple:
    """The arguments as the operator takes them: with U and one bias if nothing is normalised."""
    if sites[:2] != (None, None):
        x, U = project(x, U, c), None
    elif c is not None:
        b = c if b is None else b + c
    tensors: list[Tensor | None] = []
    weights = None
    T = x.shape[0] if batch_sizes is None else batch_sizes.shape[0]
    near = _references(x, h0, c0, W, b, sites, window, over_batch)
    for site, reference in zip(sites, near, strict=True):
        if site is None:
            tensors += [None] * 5
            continue
        past = given = None
        if reference is not None and site.past is not None and window > 1:
            weights = site.past.weights
            reference = torch.where(weights[-1] > 0, site.past.reference, reference)
            past = torch.stack((site.past.means, site.past.variances))
        if site.given is not None:
            given = torch.stack([table[:T] for table in site.given])
        tensors += [site.gamma, site.beta, reference, past, given]
    return x, h0, c0, W, b, *tensors, weights, U, batch_sizes, window, over_batch, eps


def _references(
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    W: Tensor,
    b: Tensor | None,
    sites: Sequence[NormSite | None],
    window: int,
    over_batch: bool,
) -> Sequence[Tensor | None]:
    """Of each normalisation a number near the first step's mean, to take away from all steps.

    It is what they have in common. Of a single step only x, which may be anything, needs one.
    """
    of_x, of_h, of_c = (
        site is not None and site.given is None and (window > 1 or k == 0)
        for k, site in enumerate(sites)
    )
    if not (of_x or of_h or of_c):
        return None, None, None
    by_kernel = x.is_cuda and not over_batch and backend_in_force() != "reference"
    if by_kernel and computes_now(x) and not refused(x, h0, c0, W, b):
        found = references(x if of_x else None, h0, c0 if of_c else None, W if of_h else None, b)
        return [None if site is None else one for one, site in zip(found, sites, strict=True)]
    starts = (
        x.reshape(-1, x.shape[-1])[: h0.shape[0]] if of_x else None,
        (h0 @ W.mT if b is None else torch.addmm(b, h0, W.mT)) if of_h else None,
        c0 if of_c else None,
    )
    axis = 0 if over_batch else 1
    return [None if a is None else coarse(a.mean(axis, keepdim=True)) for a in starts]


def _states(outputs: tuple[Tensor, ...], arguments: tuple) -> States:
    h, c, _, *statistics = outputs
    sites = [
        (values.new_zeros(values.shape[2:]) if reference is None else reference, values)
        if values.dim() == 4
        else None
        for reference, values in zip(arguments[7:20:5], statistics, strict=True)
    ]
    return States(h, c, *sites)


_lstm = torch.library.custom_op("cayley::lstm", lstm_forward, mutates_args=())
_lstm_backward = torch.library.custom_op("cayley::lstm_backward", lstm_gradient, mutates_args=())


@_lstm.register_kernel("cpu")
def _lstm_on_cpu(x, *arguments):
    *tensors, batch_sizes, window, over_batch, eps, _, backend = arguments
    if runs_on("cpu", backend, x, native.refusal(x, *tensors)):
        return cpu.lstm(x, *tensors, batch_sizes, window, over_batch, eps)
    return lstm_forward(x, *arguments)


@_lstm_backward.register_kernel("cpu")
def _lstm_backward_on_cpu(*arguments):
    *tensors, batch_sizes, window, over_batch, eps, wanted, backend = arguments
    h = tensors[5]
    if runs_on("cpu", backend, h, native.refusal(h, *tensors)):
        return cpu.lstm_backward(*tensors, batch_sizes, window, over_batch, eps, wanted)
    return lstm_gradient(*arguments)


@_lstm.register_kernel("cuda")
def _lstm_on_cuda(x, *arguments):
    *tensors, U, batch_sizes, window, over_batch, eps, _, backend = arguments
    rest = (*tensors, batch_sizes, window, over_batch, eps)
    projected = project(x, U, None)
    if runs_on("cuda", backend, x, cuda.refusal(projected, *rest)):
        return cuda.lstm(projected, *rest)
    return lstm_forward(x, *arguments)


@_lstm_backward.register_kernel("cuda")
def _(*arguments):
    # some are one tensor or parts of one, which the results of an operator must not be
    found = _lstm_backward_on_cuda(*arguments)
    return [g.clone() if g._is_view() or g.numel() == 0 else g for g in found]


def _lstm_backward_on_cuda(*arguments):
    *outputs, x, h0 = arguments[:13]
    *inputs, U, batch_sizes, window, over_batch, eps, wanted, backend = arguments[13:]
    # with U, what the input contributed has the shape of what is kept, and is not read
    projected = x if U is None else outputs[7]
    rest = (projected, h0, *inputs, batch_sizes, window, over_batch, eps)
    if runs_on("cuda", backend, outputs[5], cuda.refusal(*rest, others=outputs)):
        found = cuda.lstm_backward(*outputs, *rest)
        return matrix_gradients(found, outputs[5], x, h0, U, batch_sizes, wanted)
    return lstm_gradient(*arguments)


@_lstm.register_fake
def _(x, h0, c0, W, b, *arguments):
    *sites, _, _, batch_sizes, _, over_batch, _, _, _ = arguments
    B, H = h0.shape
    T = x.shape[0] if batch_sizes is None else batch_sizes.shape[0]

    def statistics(gamma: Tensor | None, given: Tensor | None) -> Tensor:
        if gamma is None or given is not None:
            return x.new_empty(0)
        return x.new_empty(4, T, 1, gamma.shape[0]) if over_batch else x.new_empty(4, T, B, 1)

    return (
        x.new_empty(*x.shape[:-1], H),
        x.new_empty(*x.shape[:-1], H),
        x.new_empty(*x.shape[:-1], 4 * H),
        *(statistics(sites[k], sites[k + 4]) for k in (0, 5, 10)),
    )


@_lstm_backward.register_fake
def _(*arguments):
    h = arguments[5]
    x, h0, c0, W, b, *sites = arguments[11:31]
    _, U, *_, (of_x, of_W, of_U), _ = arguments[31:]

    def like(tensor: Tensor | None) -> Tensor:
        return h.new_empty(0 if tensor is None else tensor.shape)

    grad_W = empty_gradient(h, W if of_W else None)
    result = [like(x if of_x else None), like(h0), like(c0), grad_W, like(b)]
    for k in (0, 5, 10):
        gamma, _, _, past, _ = sites[k : k + 5]
        result += [like(gamma), like(gamma), like(past)]
    return [*result, empty_gradient(h, U if of_U else None)]


def _save(ctx, inputs, output):
    *tensors, ctx.window, ctx.over_batch, ctx.eps, _, ctx.backend = inputs
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
        return *_differentiate_loop(ctx, inputs, gradients, options), *(None,) * 5
    grad_h, grad_c, _, *grad_statistics = gradients
    needed = ctx.needs_input_grad[: ctx.inputs + 5]
    wanted = [needed[0], needed[3], needed[-7]]
    arguments = (grad_h, grad_c, *grad_statistics, *outputs, *inputs, *options, wanted, ctx.backend)
    found = at_once(_lstm_backward, _BACKWARD_KERNELS, inputs[0], *arguments)
    dx, d_h0, d_c0, d_W, d_b, *sites, d_U = found
    found = [dx, d_h0, d_c0, d_W, d_b]
    for k in range(3):
        d_gamma, d_beta, d_past = sites[3 * k : 3 * k + 3]
        d_reference = None
        if needed[7 + 5 * k]:
            statistics, external = outputs[3 + k], grad_statistics[k]
            d_reference = reference_gradient(statistics, external, d_past, inputs[-1])
        found += [d_gamma, d_beta, d_reference, d_past, None]  # what is given has none
    found += [None, d_U, None, *(None,) * 5]
    return (*(gradient if need else None for gradient, need in zip(found, needed, strict=True)),)


def _differentiate_loop(ctx, inputs, gradients, options):
    """Gradients that can be differentiated again: those of the loop, whose steps are recorded."""
    # an alias for each argument keeps apart those that are one tensor
    aliases: list[Any] = [None if tensor is None else tensor.view_as(tensor) for tensor in inputs]
    wanted = [k for k, needed in enumerate(ctx.needs_input_grad[: len(inputs)]) if needed]
    outputs = lstm_forward(*aliases, *options, by_definition=True, backend="reference")
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

_KERNELS = {"cpu": _lstm_on_cpu, "cuda": _lstm_on_cuda}
_BACKWARD_KERNELS = {"cpu": _lstm_backward_on_cpu, "cuda": _lstm_backward_on_cuda}
