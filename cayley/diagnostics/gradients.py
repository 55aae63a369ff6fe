r"""The total derivative of a loss with respect to every state.

The backward pass of a recurrence goes from the last step to the first in one kernel, which returns
:math:`\delta_t`, the gradient of the input's contribution to step t. With it, what :math:`h_t`
receives from step t + 1 is one product for all steps together. If a state is also carried over unit
by unit, as by the gates of a GRU and by the cell of an LSTM, a linear recurrence remains, which
takes log₂ T passes over all steps.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from cayley.diagnostics.normalisations import apply_site, pull_back, recurrent_products
from cayley.diagnostics.runs import LayerRun, check_seen, previous_rows, single, watched
from cayley.diagnostics.scans import linear_scan
from cayley.kernels.calls import ElmanCall, GruCall, LstmCall, NormalizedElmanCall, Site
from cayley.norms.layouts import padded, reversed_sequences, step_mask
from cayley.preconditioners.rule import suspended
from cayley.tracing import no_autocast

__all__ = [
    "StateGradients",
    "gradient_norms",
    "run_gradients",
    "state_gradients",
]


class StateGradients(NamedTuple):
    r"""Total derivatives of a loss with respect to the states of one recurrence.

    Attributes:
        h: :math:`\partial L / \partial h_t`, including the effect through later steps, (T, B, H),
            or (N, H) for packed sequences, in the order of the packed rows.
        h0: :math:`\partial L / \partial h_0`, (B, H); for packed sequences, longest first.
        c: The derivatives with respect to the cells of an LSTM, shaped as h; None for other
            recurrences.
        c0: The derivative with respect to the initial cell, in the order of h0.
        batch_sizes: The batch sizes of packed sequences, (T).
        reverse: Whether the recurrence reads the sequence from its end.
        unsorted_indices: The place of each sequence among packed ones, (B), if they were sorted.
    """

    h: Tensor
    h0: Tensor
    c: Tensor | None = None
    c0: Tensor | None = None
    batch_sizes: Tensor | None = None
    reverse: bool = False
    unsorted_indices: Tensor | None = None

    def norms(self, of: Literal["h", "c"] = "h") -> Tensor:
        """Their Euclidean norms in the order of the recurrence, beginning with the initial state.

        Returns:
            (T + 1, B), NaN for steps that a shorter sequence does not have; packed sequences are in
            the order in which they were given to be packed.
        """
        values, first = (self.h, self.h0) if of == "h" else (self.c, self.c0)
        if values is None or first is None:
            raise ValueError("expected the gradients of an LSTM, got a recurrence without cells")
        norms = torch.linalg.vector_norm(values, dim=-1, keepdim=True)
        if self.reverse:
            norms = reversed_sequences(norms, self.batch_sizes)
        if self.batch_sizes is not None:
            rows = step_mask(self.batch_sizes, norms.device)
            norms = padded(norms, rows).where(rows[..., None], torch.nan)
        norms = torch.cat((torch.linalg.vector_norm(first, dim=-1)[None], norms[..., 0]))
        return norms if self.unsorted_indices is None else norms[:, self.unsorted_indices]


def state_gradients(
    model: nn.Module, compute_loss: Callable[[], Tensor]
) -> dict[str, StateGradients]:
    r"""Total derivatives of a loss with respect to all states of all recurrences of a model.

    .. math::
        \frac{\partial L}{\partial h_t} = \frac{\partial^{+} L}{\partial h_t} +
        \Big(\frac{\partial h_{t+1}}{\partial h_t}\Big)^{\!\top} \frac{\partial L}{\partial h_{t+1}}

    from the fused backward pass, which runs once more for this; there is no loop in Python. The
    gradients of the parameters (``p.grad``) do not change.

    References:
        Orthogonal Recurrent Neural Networks and Batch Normalization in Deep Neural Networks
        (dissertation), Helfrich, 2020, section 2.5.

    Arguments:
        model: A model with recurrent layers of this package.
        compute_loss: Runs the model and returns the loss, ().

    Returns:
        The gradients of each recurrence, by a name such as ``"rnn.l0"`` or ``"rnn.l1_reverse"``. If
        the loss is a mean over the batch, they contain the factor 1/B.

    Example:
        >>> import cayley
        >>> layer, x = cayley.ScoRNN(2, 8), torch.randn(5, 3, 2)
        >>> found = state_gradients(layer, lambda: layer(x)[0][-1].square().sum())
        >>> found["l0"].h.shape, found["l0"].norms().shape
        (torch.Size([5, 3, 8]), torch.Size([6, 3]))
    """
    with suspended(model), watched(model) as runs, torch.enable_grad():
        loss = compute_loss()
        parameters = [p for p in model.parameters() if p.requires_grad]
        if not parameters or not loss.requires_grad:
            raise ValueError(
                "expected a loss with a gradient, got none: some parameter of the model must "
                "require one, and the loss must depend on it"
            )
        torch.autograd.grad(loss, parameters, allow_unused=True)
    check_seen(runs)
    # without the runs that activation checkpointing repeats
    found = single([run for run in runs if run.gradients is not None])
    if not found:
        raise ValueError(
            "expected a loss that depends on a recurrent layer with trainable parameters, got one "
            "that does not"
        )
    return {name: run_gradients(run) for name, run in found.items()}


def gradient_norms(model: nn.Module, compute_loss: Callable[[], Tensor]) -> dict[str, Tensor]:
    r"""Norms :math:`\|\partial L/\partial h_t\|_2` for t = 0, …, T, by :func:`state_gradients`.

    Returns:
        For each recurrence (T + 1, B), :math:`h_0` first, NaN for steps after a sequence's end.

    Example:
        A rotation keeps every norm.

        >>> import cayley
        >>> layer = cayley.RNN(1, 2, recurrent="cayley", nonlinearity="identity")
        >>> x = torch.randn(4, 1, 1)
        >>> norms = gradient_norms(layer, lambda: layer(x)[0][-1, 0, 0])["l0"]
        >>> torch.testing.assert_close(norms, torch.ones(5, 1))
    """
    return {name: one.norms() for name, one in state_gradients(model, compute_loss).items()}


@torch.no_grad()
def run_gradients(run: LayerRun) -> StateGradients:
    """The total derivatives of a run, after its backward pass.

    Arguments:
        run: One of those that :func:`~cayley.diagnostics.watched` keeps.
    """
    if run.gradients is None:
        raise ValueError(
            f"expected a run of {run.name} after its backward pass, got one without: call "
            "backward, and make sure that a parameter of the layer requires a gradient"
        )
    with no_autocast(run.states.h.device):
        if isinstance(run.call, ElmanCall):
            return _elman(run, run.call)
        if isinstance(run.call, GruCall):
            return _gru(run, run.call)
        if isinstance(run.call, NormalizedElmanCall):
            return _normalized_elman(run, run.call)
        return _lstm(run, run.call)


def _elman(run: LayerRun, call: ElmanCall) -> StateGradients:
    delta = _deltas(run, call._replace(x=run.states.h, U=None, c=None))
    steps = _Steps(run)
    g = steps.with_initial(_external(run, "h"))
    g = g.index_add(0, steps.before, _rows(delta) @ call.W)
    return steps.gradients(g)


def _gru(run: LayerRun, call: GruCall) -> StateGradients:
    H = call.h0.shape[-1]
    delta = _rows(_deltas(run, call._replace(x=run.states.gates, U=None, c=None)))
    r, u, _ = _rows(run.states.gates).chunk(3, -1)
    W_gates, W_c = call.W.split((2 * H, H))
    by_products = delta[:, : 2 * H] @ W_gates + r * (delta[:, 2 * H :] @ W_c)
    steps = _Steps(run)
    g = steps.with_initial(_external(run, "h")).index_add(0, steps.before, by_products)
    return steps.gradients(steps.scan(g, 1 - u))


def _normalized_elman(run: LayerRun, call: NormalizedElmanCall) -> StateGradients:
    states, gradients, H = run.states, run.gradients, call.h0.shape[-1]
    # as if x were already normalised and its normalisation the identity: its gradient is then δ
    steps = len(call.x if call.batch_sizes is None else call.batch_sizes)
    given = torch.stack((call.x.new_zeros(()), call.x.new_ones(()) - call.eps))
    identity = Site(
        call.x.new_ones(H), call.x.new_zeros(H), given=given.view(2, 1, 1, 1).expand(2, steps, 1, H)
    )
    x = apply_site(call.input, call.x, states.input, call)
    delta = _deltas(run, call._replace(x=x, input=identity), states, gradients._replace(input=None))
    da = pull_back(call.recurrent, recurrent_products(run), delta, gradients.recurrent, call)
    rows = _Steps(run)
    g = rows.with_initial(_external(run, "h")).index_add(0, rows.before, _rows(da) @ call.W)
    return rows.gradients(g)


def _lstm(run: LayerRun, call: LstmCall) -> StateGradients:
    states, gradients, W = run.states, run.gradients, call.W
    # as if x were already normalised: its gradient is then δ
    x = states.kept if call.U is not None else apply_site(call.input, call.x, states.input, call)
    delta = _deltas(
        run,
        call._replace(x=x, U=None, input=None),
        states._replace(input=call.x.new_empty(0)),
        gradients._replace(input=None),
    )
    steps, da = _Steps(run), delta
    if call.recurrent is not None:
        a = recurrent_products(run)
        da = pull_back(call.recurrent, a, delta, gradients.recurrent, call)
    g = steps.with_initial(_external(run, "h")).index_add(0, steps.before, _rows(da) @ W)
    # of the cell: by h, and by the cell of the next step
    if call.recurrent is None:
        _, f, _, o = states.kept.chunk(4, -1)
    else:
        y_h = torch.addcmul(call.recurrent.beta, states.kept, call.recurrent.gamma)
        _, f, _, o = (x + y_h).chunk(4, -1)
        f, o = f.sigmoid(), o.sigmoid()
    tanh_c = apply_site(call.cell, states.c, states.cell, call).tanh()
    own = g[len(call.h0) :].view_as(states.h)
    by_h = pull_back(call.cell, states.c, own * o * (1 - tanh_c * tanh_c), gradients.cell, call)
    of_c = steps.scan(steps.with_initial(_external(run, "c") + by_h), _rows(f))
    found = steps.gradients(of_c)
    return steps.gradients(g)._replace(c=found.h, c0=found.h0)


class _Steps:
    """The rows of a run, initial states first, and which of them each step starts from."""

    def __init__(self, run: LayerRun) -> None:
        self.run, self.B = run, len(run.call.h0)
        self.before = previous_rows(run)

    def with_initial(self, values: Tensor) -> Tensor:
        """Values of all steps with zeros for the initial states before them, (B + N, ·)."""
        return torch.cat((values.new_zeros(self.B, values.shape[-1]), _rows(values)))

    def scan(self, values: Tensor, factors: Tensor) -> Tensor:
        """Every row plus what the step that starts from it passes back, times its factor."""
        sizes, h = self.run.call.batch_sizes, self.run.states.h
        coefficients = torch.zeros_like(values).index_copy(0, self.before, factors)
        following = torch.full((len(values),), -1, device=values.device)
        following[self.before] = torch.arange(self.B, len(values), device=values.device)
        return linear_scan(values, coefficients, following, len(h if sizes is None else sizes))

    def gradients(self, rows: Tensor) -> StateGradients:
        """The result, in the order of the layer's input."""
        sizes, h = self.run.call.batch_sizes, rows[self.B :].view_as(self.run.states.h)
        if self.run.is_turned:
            h = reversed_sequences(h, sizes)
        reverse, order = self.run.reverse, self.run.unsorted_indices
        return StateGradients(h, rows[: self.B], None, None, sizes, reverse, order)


def _external(run: LayerRun, name: str) -> Tensor:
    gradient = getattr(run.gradients, name)
    return torch.zeros_like(getattr(run.states, name)) if gradient is None else gradient


def _deltas(run: LayerRun, call: Any, states: Any = None, gradients: Any = None) -> Tensor:
    """The gradient of the input's contribution, from the fused backward pass."""
    states = run.states if states is None else states
    gradients = run.gradients if gradients is None else gradients
    if gradients.h is None:
        gradients = gradients._replace(h=torch.zeros_like(states.h))
    found = run.operator.backward(gradients, states, call, {"x"}, run.backend)
    return found["x"]


def _rows(values: Tensor) -> Tensor:
    return values.reshape(-1, values.shape[-1])
