r"""The LSTM recurrence with normalised products and cells, and its gradient."""

from collections.abc import Iterable
from functools import partial
from typing import Literal, NamedTuple

from torch import Tensor

from cayley.kernels.calls import LstmCall, LstmGradients, LstmStates, Site
from cayley.kernels.cpu import lstm as cpu
from cayley.kernels.cuda.lstm import node
from cayley.kernels.cuda.lstm import recurrence as cuda
from cayley.kernels.dispatch import backend_in_force, use_kernel
from cayley.kernels.observation import Run, is_observed, tell_observer
from cayley.kernels.operator import Kernels, Operator
from cayley.kernels.projection import project
from cayley.norms.pooling import Pool
from cayley.recurrences.lstm_call import LstmArguments, NormSite, lstm_call
from cayley.recurrences.lstm_forward import lstm_forward
from cayley.recurrences.lstm_gradient import lstm_gradient, with_references
from cayley.recurrences.scans import lstm_scan

__all__ = ["States", "lstm", "lstm_loop"]


class States(NamedTuple):
    r"""The results of an LSTM.

    Attributes:
        h: The states of all steps, in the layout of x with H features.
        c: The cells of all steps, likewise.
        input, recurrent, cell: For each normalisation its references, (B, 1), or (1, F) over the
            batch, and for each step: mean and variance of the step, mean of its window and
            :math:`1/\sqrt{\sigma^2 + \epsilon}`, (4, T, B, 1) or (4, T, 1, F). The reference is
            subtracted from all means. The last two are for information, and have no gradient. None
            without a normalisation, or if its statistics are given.
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
    pool: Pool | None = None,
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
        The gates are stacked as in torch: input, forget, candidate, output. The papers stack them
        as forget, input, output, candidate, which only changes the order of the rows of W.

        Time runs forwards. A layer that reads a sequence from its end reverses it first, so that
        windows follow the order of the recurrence too.

    References:
        Assorted-Time Normalization: section 3.4 of Pospisil's dissertation, 2023.
        Layer Normalization, Ba, Kiros, Hinton, 2016.

    Arguments:
        x: The input, (T, B, I), or without U its contribution to each step, (T, B, 4H); with
            ``batch_sizes``, the steps one after another, (N, ·).
        h0: The state before the first step, (B, H).
        c0: The cell before the first step, (B, H).
        W: The recurrent matrix, (4H, H).
        b: The bias inside :math:`N_h`, (4H).
        U: The input matrix, (4H, I); None if x is the contribution of the input.
        c: The bias added to U x, (4H).
        input: The normalisation :math:`N_x`; None for the identity.
        recurrent: The normalisation :math:`N_h`; None for the identity.
        cell: The normalisation :math:`N_c`; None for the identity.
        window: The number K of steps.
        over: ``"layer"`` or ``"batch"``.
        eps: The ε of the normalisations.
        batch_sizes: The number of sequences that have step t, never increasing, (T), on the CPU.
        pool: Computes statistics over the batch over all processes; None for this one alone.

    Returns:
        The states and cells of all steps, and the statistics.

    Example:
        >>> import torch
        >>> x, state, W = torch.zeros(3, 1, 4), torch.zeros(1, 1), torch.zeros(4, 1)
        >>> x[..., 1] = x[..., 2] = 50  # to forget nothing, and to add σ(0) tanh(50)
        >>> lstm_loop(x, state, state, W).c.flatten()
        tensor([0.5000, 1.0000, 1.5000])
    """
    arguments = LstmArguments(
        *(x, h0, c0, W, b, U, c, input, recurrent, cell, window, over, eps, batch_sizes, pool)
    )
    arguments.check()
    call = lstm_call(arguments)
    return _states(lstm_forward(call, by_definition=True, pool=pool), _references(call))


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
    pool: Pool | None = None,
) -> States:
    r"""The recurrence of :func:`lstm_loop` as one operator with a gradient written by hand.

    The cost of the statistics, and of their gradient, does not depend on the window. With
    :math:`p_t` and :math:`q_t` the gradients with respect to mean and variance of the window of
    step t and :math:`n_t` the number of values in it, those with respect to mean and variance of
    step i are :math:`\sum_t (p_t + 2 q_t (m_i - \mu_t))/n_t` and :math:`\sum_t q_t/n_t`, over the
    K windows that step i is in. Gradients of gradients, and derivatives in forward mode, are those
    of the loop. To ``torch.compile`` and ``torch.export`` it is a single node. Under ``vmap`` and
    ``grad`` of :mod:`torch.func` kernels run G networks with their own W, on a GPU several in one
    launch.

    Arguments and results are those of :func:`lstm_loop`. With a ``pool`` the recurrence runs as a
    loop of torch operations.

    Example:
        >>> import torch
        >>> x, h0, W = torch.randn(9, 2, 12), torch.zeros(2, 3), torch.randn(12, 3)
        >>> site = NormSite(torch.ones(12), torch.zeros(12))
        >>> h = lstm(x, h0, h0, W, recurrent=site, window=4).h
        >>> torch.testing.assert_close(h, lstm_loop(x, h0, h0, W, recurrent=site, window=4).h)
    """
    arguments = LstmArguments(
        *(x, h0, c0, W, b, U, c, input, recurrent, cell, window, over, eps, batch_sizes, pool)
    )
    arguments.check()
    if pool is not None:
        refusal = "its statistics over the batch are those of several processes"
        use_kernel(x.device.type, refusal, x.device)
        call = lstm_call(arguments)
        return _states(lstm_forward(call, pool=pool), _references(call))
    if x.is_cuda:
        fused = _fused_call(arguments)
        if fused is not None and node.refusal(fused, c) is None:
            states, references = node.lstm_node(fused, c, _lstm)
            if is_observed():
                call = _as_operator(fused, c, references)
                tell_observer(Run(_lstm, call, states, backend_in_force()))
            return _states(states, references)
    call = lstm_call(arguments)
    return _states(_lstm(call), _references(call))


def _fused_call(arguments: LstmArguments) -> LstmCall | None:
    """The call for :func:`~.node.lstm_node`; None if statistics are given, or those of a past."""
    sites: list[Site | None] = []
    for site in arguments.sites():
        if site is None:
            sites.append(None)
        elif site.given is not None or (site.past is not None and arguments.window > 1):
            return None
        else:
            sites.append(Site(site.gamma, site.beta))
    x, h0, c0, W, b, U, *_ = arguments
    of_x, of_h, of_c = sites
    return LstmCall(
        *(x, h0, c0, W, b, of_x, of_h, of_c),
        U=U,
        batch_sizes=arguments.batch_sizes,
        window=arguments.window,
        over_batch=arguments.over == "batch",
        eps=arguments.eps,
    )


def _as_operator(call: LstmCall, c: Tensor | None, references: Iterable[Tensor | None]) -> LstmCall:
    """The call of the operator that is equivalent to one of :func:`~.node.lstm_node`."""
    sites = [
        None if site is None else site._replace(reference=reference)
        for site, reference in zip(call.sites(), references, strict=True)
    ]
    of_x, of_h, of_c = sites
    x = project(call.x, call.U, c)
    return call._replace(x=x, U=None, input=of_x, recurrent=of_h, cell=of_c)


def _references(call: LstmCall) -> Iterable[Tensor | None]:
    return (None if site is None else site.reference for site in call.sites())


def _states(states: LstmStates, references: Iterable[Tensor | None]) -> States:
    sites = [
        (values.new_zeros(values.shape[2:]) if reference is None else reference, values)
        if values.dim() == 4
        else None
        for reference, values in zip(references, states.statistics(), strict=True)
    ]
    return States(states.h, states.c, *sites)


def _shapes(call: LstmCall) -> LstmStates:
    x, (B, H) = call.x, call.h0.shape
    T = x.shape[0] if call.batch_sizes is None else call.batch_sizes.shape[0]

    def statistics(site: Site | None) -> Tensor:
        if site is None or site.given is not None:
            return x.new_empty(0)
        return x.new_empty(4, T, *((1, site.gamma.shape[0]) if call.over_batch else (B, 1)))

    h, c, kept = (x.new_empty(*x.shape[:-1], F) for F in (H, H, 4 * H))
    return LstmStates(h, c, kept, *(statistics(site) for site in call.sites()))


_lstm = Operator(
    "lstm",
    call=LstmCall,
    states=LstmStates,
    gradients=LstmGradients,
    loop=lstm_forward,
    gradient=with_references(lstm_gradient),
    shapes=_shapes,
    kernels={
        "cpu": Kernels(cpu.refusal, cpu.lstm, with_references(cpu.lstm_backward)),
        "cuda": Kernels(
            *(cuda.refusal, cuda.lstm, with_references(cuda.lstm_backward), cuda.takes_networks)
        ),
    },
    scan=lstm_scan,
    definition=partial(lstm_forward, by_definition=True),
    constants=("batch_sizes", "weights", "input_given", "recurrent_given", "cell_given"),
)
