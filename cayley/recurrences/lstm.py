r"""The LSTM recurrence with normalised products and cells, and its gradient."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from cayley.kernels.cpu import lstm as cpu
from cayley.kernels.cpu import native
from cayley.kernels.cuda.lstm import recurrence as cuda
from cayley.kernels.cuda.lstm.node import Run, differentiable_lstm, serves
from cayley.kernels.cuda.runtime.projection import project_on_cuda
from cayley.kernels.dispatch import backend_in_force, runs_on
from cayley.kernels.operator import (
    at_once,
    differentiable_at_once,
    recorded_gradients,
    separate,
)
from cayley.kernels.steps import empty_gradient
from cayley.recurrences.lstm_arguments import (
    NormSite,
    check_lstm,
    operator_arguments,
    starts_anew,
)
from cayley.recurrences.lstm_forward import lstm_forward
from cayley.recurrences.lstm_gradient import lstm_gradient, reference_gradient
from cayley.tracing import no_autocast, transforms_active

__all__ = ["States", "lstm", "lstm_loop"]


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
    arguments = operator_arguments(
        x, h0, c0, W, b, U, c, sites, window, over == "batch", eps, batch_sizes
    )
    h, c, _, *statistics = lstm_forward(*arguments, by_definition=True, backend="reference")
    return _states(h, c, statistics, arguments[7:20:5])


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
    if x.is_cuda and starts_anew(sites, window, over):
        run = Run(window, eps, batch_sizes)
        norms = [v for site in sites for v in ((None, None) if site is None else site[:2])]
        tensors = (x, h0, c0, W, b, U, c)
        if serves(run, tensors, norms):
            h, c, *statistics = differentiable_lstm(run, tensors, norms)
            return _states(h, c, statistics, run.references)
    arguments = operator_arguments(
        x, h0, c0, W, b, U, c, sites, window, over == "batch", eps, batch_sizes
    )
    if transforms_active():
        h, c, _, *statistics = lstm_forward(*arguments, by_definition=False, backend="reference")
        return _states(h, c, statistics, arguments[7:20:5])
    inputs = (*arguments, False, backend_in_force())
    h, c, _, *statistics = differentiable_at_once(_lstm, _KERNELS, _save, _differentiate, *inputs)
    return _states(h, c, statistics, arguments[7:20:5])


def _states(
    h: Tensor, c: Tensor, statistics: Sequence[Tensor], references: Iterable[Tensor | None]
) -> States:
    sites = [
        (values.new_zeros(values.shape[2:]) if reference is None else reference, values)
        if values.dim() == 4
        else None
        for reference, values in zip(references, statistics, strict=True)
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
def _(*arguments):
    return (*separate(_lstm_on_cuda(*arguments)),)


def _lstm_on_cuda(x, *arguments):
    *tensors, U, batch_sizes, window, over_batch, eps, _, backend = arguments
    rest = (*tensors, batch_sizes, window, over_batch, eps)
    if runs_on("cuda", backend, x, cuda.refusal(x, *rest, others=(U,))):
        return cuda.lstm(project_on_cuda(x, U, None), *rest)
    return lstm_forward(x, *arguments)


@_lstm_backward.register_kernel("cuda")
def _(*arguments):
    return separate(_lstm_backward_on_cuda(*arguments))


def _lstm_backward_on_cuda(*arguments):
    *outputs, x, h0 = arguments[:13]
    *inputs, U, batch_sizes, window, over_batch, eps, wanted, backend = arguments[13:]
    # with U, what the input contributed has the shape of what is kept, and is not read
    projected = x if U is None else outputs[7]
    rest = (projected, h0, *inputs, batch_sizes, window, over_batch, eps)
    if not runs_on("cuda", backend, outputs[5], cuda.refusal(*rest, others=outputs)):
        return lstm_gradient(*arguments)
    of_x, of_W, of_U = wanted
    want = cuda.Wanted(of_x, True, True, of_W, inputs[2] is not None, of_U, False)
    *found, _ = cuda.lstm_backward(*outputs, *rest, input=x, U=U, wanted=want)
    # W and U are matrices
    shapes = [(0, 0) if k in (3, 14) else (0,) for k in range(15)]
    pairs = zip(found, shapes, strict=True)
    return [x.new_empty(shape) if gradient is None else gradient for gradient, shape in pairs]


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

        def loop(*tensors: Any) -> tuple[Tensor, ...]:
            return lstm_forward(*(*tensors, *options), by_definition=True, backend="reference")

        needed = ctx.needs_input_grad[: ctx.inputs]
        return *recorded_gradients(loop, inputs, needed, gradients), *(None,) * 5
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


_lstm.register_autograd(_differentiate, setup_context=_save)

_KERNELS = {"cpu": _lstm_on_cpu, "cuda": _lstm_on_cuda}
_BACKWARD_KERNELS = {"cpu": _lstm_backward_on_cpu, "cuda": _lstm_backward_on_cuda}
