"""The LSTM on CUDA kernels as one autograd node, which includes the product with the input.

For up to a few hundred steps, a GPU waits for Python, so this does as little as possible in Python.
Everything else goes through the operator: tracers, autocast, given statistics and those of a past,
and what the kernels refuse.
"""

from collections.abc import Sequence
from itertools import compress, islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cayley.kernels.calls import LstmCall, LstmGradients, LstmStates, Site
from cayley.kernels.cuda.lstm.batch import joins_rows
from cayley.kernels.cuda.lstm.many_rows import many_rows_lstm
from cayley.kernels.cuda.lstm.recurrence import NO_SITES, contributed_lstm, lstm_backward
from cayley.kernels.cuda.lstm.recurrence import refusal as recurrence_refusal
from cayley.kernels.cuda.runtime.projection import project_by_features, project_on_cuda
from cayley.kernels.dispatch import backend_in_force
from cayley.kernels.operator import Found, Operator, recorded_gradients
from cayley.kernels.projection import project, projection_gradients
from cayley.tracing import autocast_enabled, eager_apply, is_eager, no_autocast, traced

__all__ = ["lstm_node", "refusal"]


def refusal(call: LstmCall, c: Tensor | None) -> str | None:
    """Why :func:`lstm_node` cannot run a call; None if it can.

    Arguments:
        call: The call, which here may have both normalisations and U. No statistics are given, or
            those of a past.
        c: The bias added to U x.
    """
    if not call.x.is_cuda or backend_in_force() not in ("auto", "cuda"):
        return "another back end is in use"
    if not is_eager() or autocast_enabled(call.x.device):
        return "tracers, transforms, forward mode and autocast need the operator"
    return recurrence_refusal(call, c=c)


def lstm_node(
    call: LstmCall, c: Tensor | None, operator: Operator[LstmCall, LstmStates]
) -> tuple[LstmStates, Sequence[Tensor | None]]:
    """The states of a call, and the references of its normalisations.

    Arguments:
        call: The call, which here may have both normalisations and U.
        c: The bias added to U x.
        operator: The LSTM as an operator, for gradients that are traced or differentiated again.

    Returns:
        The states, and the reference that each normalisation subtracts from its means, (B, 1), or
        over the batch (1, F).
    """
    inputs = [call.x, call.h0, call.c0, call.W, call.b, call.U, c]
    for site in call.sites():
        inputs += (None, None) if site is None else (site.gamma, site.beta)
    found = _Found()
    # the tensors of the call once more, one by one: autograd does not see those of a record
    h, cells, *statistics = _make_node(_Run(call, operator), call, found, *inputs)
    values = iter(statistics)
    of_sites = (next(values) if kept.dim() > 1 else kept for kept in found.statistics)
    return LstmStates(h, cells, found.kept, *of_sites), found.references


class _Inputs(NamedTuple):
    """The tensors that may have a gradient, under the names of their gradients."""

    x: Tensor
    h0: Tensor
    c0: Tensor
    W: Tensor
    b: Tensor | None
    U: Tensor | None
    c: Tensor | None
    input_gamma: Tensor | None
    input_beta: Tensor | None
    recurrent_gamma: Tensor | None
    recurrent_beta: Tensor | None
    cell_gamma: Tensor | None
    cell_beta: Tensor | None

    def call(self, run: "_Run", references: Sequence[Tensor | None]) -> LstmCall:
        """The call with these tensors, and the options of a run."""
        of_x, of_h, of_c = references
        return LstmCall(
            *(self.x, self.h0, self.c0, self.W, self.b),
            input=_site(self.input_gamma, self.input_beta, of_x),
            recurrent=_site(self.recurrent_gamma, self.recurrent_beta, of_h),
            cell=_site(self.cell_gamma, self.cell_beta, of_c),
            U=self.U,
            batch_sizes=run.batch_sizes,
            window=run.window,
            over_batch=run.over_batch,
            eps=run.eps,
        )


def _site(gamma: Tensor | None, beta: Tensor | None, reference: Tensor | None) -> Site | None:
    return None if gamma is None or beta is None else Site(gamma, beta, reference)


class _Run:
    """The inputs of a node that are not tensors."""

    def __init__(self, call: LstmCall, operator: Operator[LstmCall, LstmStates]) -> None:
        self.operator, self.backend = operator, backend_in_force()
        self.batch_sizes, self.window, self.eps = call.batch_sizes, call.window, call.eps
        self.over_batch = call.over_batch


class _Found:
    """Results without a gradient, which as outputs of the node would cost as much as others."""

    kept: Tensor
    statistics: Sequence[Tensor]  # with an empty one for what is not normalised
    references: Sequence[Tensor | None] = (None, None, None)


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, run: _Run, call: LstmCall, found: _Found, *inputs: Any
    ) -> tuple[Tensor, ...]:
        c, normalises = _Inputs(*inputs).c, call.sites() != NO_SITES
        states, contribution, references = many_rows_lstm(call, c), call.x, ()
        if states is None:
            project_all = project_by_features if joins_rows(call) else project_on_cuda
            contribution = project_all(call.x, call.U, c)
            states, references = contributed_lstm(call, contribution, derive=normalises)
        h, cells, found.kept, *found.statistics = states
        if normalises:
            found.references = references
        ctx.run = run
        if call.input is None and call.recurrent is None:
            contribution = found.kept  # not read in this case, and of the same shape
        ctx.save_for_backward(*inputs, contribution, *found.references, *states)
        ctx.set_materialize_grads(False)
        return h, cells, *(values for values in found.statistics if values.dim() > 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        # read only once, as activation checkpointing requires
        saved = iter(ctx.saved_tensors)
        inputs = _Inputs(*islice(saved, len(_Inputs._fields)))
        contribution, *references = islice(saved, 4)
        h, cells, *statistics = gradients
        states, values = LstmStates(*saved), iter(statistics)
        of_sites = (next(values) if kept.dim() > 1 else None for kept in states.statistics())
        of_states = LstmGradients(h, cells, None, *of_sites)
        needs = ctx.needs_input_grad[3:]
        needed = [*compress(_Inputs._fields, needs)]
        call = inputs.call(ctx.run, references)
        with no_autocast(inputs.x.device):
            if torch.is_grad_enabled():
                found = _recorded(ctx.run, inputs, references, of_states, needed)
            elif traced(inputs.x, *gradients):
                found = _by_operator(ctx.run, inputs, call, contribution, states, of_states, needed)
            else:
                found = lstm_backward(of_states, states, call, needed, contribution)
        of_inputs = zip(_Inputs._fields, needs, strict=True)
        return None, None, None, *[found.get(name) if need else None for name, need in of_inputs]


_make_node = eager_apply(_Node)


def _by_operator(
    run: _Run,
    inputs: _Inputs,
    call: LstmCall,
    contribution: Tensor,
    states: LstmStates,
    gradients: LstmGradients,
    needed: Sequence[str],
) -> Found:
    """Gradients that are traced, as by compiled autograd, with one node for the recurrence.

    The operator cannot have both U and normalisations, so it returns the gradient with respect to
    the contribution of the input.
    """
    call = call._replace(x=contribution.contiguous(), U=None)
    names = {"x", *needed} - {"U", "c"}
    found = run.operator.traced_backward(gradients, states, call, names, run.backend)
    delta = found["x"]
    assert delta is not None
    return found | projection_gradients(delta, inputs.x, inputs.U, needed)


def _recorded(
    run: _Run,
    inputs: _Inputs,
    references: Sequence[Tensor | None],
    gradients: LstmGradients,
    needed: Sequence[str],
) -> Found:
    """Gradients that can be differentiated again: those of the loop, recorded by autograd."""
    definition = run.operator.definition
    assert definition is not None

    def loop(*tensors: Any) -> LstmStates:
        own = _Inputs(*tensors)
        contribution = project(own.x, own.U, own.c)
        call = own._replace(x=contribution, U=None, c=None).call(run, references)
        return definition(call)

    wanted = [name in needed for name in _Inputs._fields]
    found = recorded_gradients(loop, inputs, wanted, gradients)
    return dict(zip(_Inputs._fields, found, strict=True))
