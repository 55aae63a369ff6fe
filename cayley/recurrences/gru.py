"""The gated recurrence (GRU) with the reset gate before the product, and its gradient."""

from collections.abc import Collection

import torch
from torch import Tensor

from cayley.activations import ACTIVATIONS, Activation
from cayley.kernels.calls import GruCall, GruGradients, GruStates
from cayley.kernels.cpu import gru as cpu
from cayley.kernels.cuda import gru as cuda
from cayley.kernels.operator import Found, Kernels, Operator
from cayley.kernels.projection import check_projection, project, projection_gradients
from cayley.kernels.steps import (
    check_devices,
    check_sequence,
    outer_products,
    previous_states,
    product_of_rows,
    rows,
    step_order,
    step_sizes,
)
from cayley.recurrences.scans import gru_scan

__all__ = ["gru", "gru_loop"]


def gru_loop(
    x: Tensor,
    h0: Tensor,
    W: Tensor,
    b: Tensor | None = None,
    *,
    U: Tensor | None = None,
    c: Tensor | None = None,
    batch_sizes: Tensor | None = None,
    reverse: bool = False,
) -> Tensor:
    r"""The recurrence as the loop that defines it; :func:`gru` computes the same.

    .. math::
        r_t &= \sigma(x^r_t + W_r h_{t-1}), \qquad u_t = \sigma(x^u_t + W_u h_{t-1}), \\
        c_t &= \phi(x^c_t + W_c (r_t \odot h_{t-1}); b), \\
        h_t &= (1 - u_t) \odot h_{t-1} + u_t \odot c_t, \qquad t = 1, \dots, T

    Note:
        u = 1 takes the candidate. In the other convention, that of cuDNN and :class:`torch.nn.GRU`,
        the gate is z = 1 − u: negate its weights. cuDNN also forms
        :math:`r \odot (W_c h)` where we form :math:`W_c (r \odot h)`, and no choice of weights
        makes the two equal.

    References:
        Learning Phrase Representations using RNN Encoder-Decoder for Statistical Machine
        Translation, Cho, van Merriënboer, Gulcehre, Bahdanau, Bougares, Schwenk, Bengio, 2014.
        Orthogonal Gated Recurrent Unit with Neumann-Cayley Transformation, Mucllari,
        Zadorozhnyy, Pospisil, Nguyen, Ye, 2022.

    Arguments:
        x: The input's contribution to each step, biases included, as
            :math:`[x^r, x^u, x^c]`, (T, B, 3H), or with U the input itself, (T, B, I); with
            ``batch_sizes``, packed steps, (N, ·).
        h0: The state before the first step, (B, H).
        W: The stacked recurrent matrices, :math:`[W_r; W_u; W_c]`, (3H, H).
        b: The threshold of φ = modReLU, (H); None for φ = tanh.
        U: The input matrix, (3H, I): the input contributes U x + c.
        c: A bias that is added to U x, (3H).
        batch_sizes: How many sequences have a step t, never increasing, (T), on the CPU: the
            layout of :class:`torch.nn.utils.rnn.PackedSequence`.
        reverse: Whether time runs from the last step to the first.

    Returns:
        The states of all steps, (T, B, H) or (N, H).

    Example:
        With all gates half open and the candidate 1, every step goes half of the remaining way.

        >>> x = torch.tensor([0.0, 0.0, 1.0]).expand(3, 1, 3)
        >>> gru_loop(x, torch.zeros(1, 1), torch.zeros(3, 1), b=torch.zeros(1)).flatten()
        tensor([0.5000, 0.7500, 0.8750])
    """
    call = GruCall(x, h0, W, b, U, c, batch_sizes, reverse)
    _check(call)
    return _loop(call).h


def gru(
    x: Tensor,
    h0: Tensor,
    W: Tensor,
    b: Tensor | None = None,
    *,
    U: Tensor | None = None,
    c: Tensor | None = None,
    batch_sizes: Tensor | None = None,
    reverse: bool = False,
) -> Tensor:
    r"""The recurrence of :func:`gru_loop` as one operator with a gradient written by hand.

    With :math:`g_t` the gradient of :math:`h_t`, that of later steps included,

    .. math::
        \delta^c_t &= \phi'(c_t)^\top (u_t \odot g_t), \qquad
        \delta^u_t = u_t (1 - u_t) \odot (c_t - h_{t-1}) \odot g_t, \\
        v_t &= W_c^\top \delta^c_t, \qquad
        \delta^r_t = r_t (1 - r_t) \odot h_{t-1} \odot v_t, \\
        \partial L / \partial h_{t-1} &\mathrel{+}= (1 - u_t) \odot g_t + r_t \odot v_t
            + W_r^\top \delta^r_t + W_u^\top \delta^u_t

    and :math:`\delta_t` is the gradient of the input's contribution. The gradients of W are
    products over all steps: :math:`\sum_t [\delta^r_t; \delta^u_t] h_{t-1}^\top` and
    :math:`\sum_t \delta^c_t (r_t \odot h_{t-1})^\top`. h, r, u and c are saved for them; φ′ is a
    function of c. For ``torch.compile`` and ``torch.export`` it is a single node for any T. Under
    ``vmap`` and ``grad`` of :mod:`torch.func` kernels run G networks with their own W, on a GPU
    several of them in one launch.

    Arguments and the result are those of :func:`gru_loop`.

    Example:
        >>> x, h0, W = torch.randn(5, 2, 9), torch.zeros(2, 3), torch.randn(9, 3)
        >>> torch.testing.assert_close(gru(x, h0, W), gru_loop(x, h0, W))
    """
    call = GruCall(x, h0, W, b, U, c, batch_sizes, reverse)
    _check(call)
    return _gru(call).h


def _check(call: GruCall) -> None:
    """Raise unless the arguments of :func:`gru` fit together."""
    x, h0, W, b, U, c, batch_sizes, _ = call
    H = W.shape[-1]
    wrong_x = U is None and x.shape[-1] != 3 * H
    if W.shape != (3 * H, H) or wrong_x or h0.shape[-1] != H:
        raise ValueError(
            "expected x (..., 3H), h0 (B, H) and W (3H, H), got "
            f"{tuple(x.shape)}, {tuple(h0.shape)} and {tuple(W.shape)}"
        )
    check_projection(x, U, c, 3 * H)
    if b is not None and b.shape != (H,):
        raise ValueError(f"expected b ({H},), one threshold per unit, got {tuple(b.shape)}")
    check_sequence(x, h0, batch_sizes)
    check_devices(x, h0, W, b, U, c)


def _activation(b: Tensor | None) -> Activation:
    return ACTIVATIONS["tanh" if b is None else "modrelu"]


def _loop(call: GruCall) -> GruStates:
    h0, W, b, H = call.h0, call.W, call.b, call.h0.shape[-1]
    x, activation = project(call.x, call.U, call.c), _activation(b)
    sizes = step_sizes(x, call.batch_sizes)
    xs = x.reshape(-1, 3 * H).split(sizes)
    hs, gates, cs = list(xs), list(xs), list(xs)
    # contiguous transposes make each of the 2T products faster
    Wt_gates, Wt_c = (part.mT.contiguous() for part in W.split((2 * H, H)))
    h = h0[:0]
    for t in step_order(len(sizes), call.reverse):
        x_gates, x_c = xs[t].split((2 * H, H), -1)
        before = rows(h, h0, sizes[t])
        gates[t] = torch.addmm(x_gates, before, Wt_gates).sigmoid()
        r, u = gates[t].chunk(2, -1)
        cs[t] = activation.apply(torch.addmm(x_c, r * before, Wt_c), b)
        # (1 − u) h + u c, exactly h for u = 0 and exactly c for u = 1
        h = hs[t] = torch.lerp(before, cs[t], u)
    kept = torch.cat((torch.cat(gates), torch.cat(cs)), -1).view(x.shape)
    return GruStates(torch.cat(hs).view(*x.shape[:-1], H), kept)


def _gradient(
    gradients: GruGradients, states: GruStates, call: GruCall, needed: Collection[str]
) -> Found:
    """Gradients by differentiable operations."""
    h0, W, b, H = call.h0, call.W, call.b, call.h0.shape[-1]
    activation, (h, gates) = _activation(b), states
    sizes = step_sizes(h, call.batch_sizes)
    before = previous_states(h, h0, call.batch_sizes, call.reverse)

    def steps(tensor: Tensor) -> tuple[Tensor, ...]:
        return tensor.reshape(-1, tensor.shape[-1]).split(sizes)

    gs, hs, kept = steps(gradients.h), steps(before), steps(gates)
    of_gates = None if gradients.gates is None else steps(gradients.gates)
    W_gates, W_c = W.split((2 * H, H))
    delta_gates, delta_c = list(gs), list(gs)
    grad_b = h0.new_zeros(0) if b is None else torch.zeros_like(b)
    ended: list[Tensor] = []
    carry = h0[:0]
    for t in step_order(len(sizes), not call.reverse):
        # Time runs backwards here. Sequences whose first step (in the order of the recurrence) this
        # is pass their gradient to h0; those whose last step it is receive none.
        B = min(sizes[t], len(carry))
        ended.append(carry[B:])
        g = torch.cat((gs[t][:B] + carry[:B], gs[t][B:]))
        r, u, c = kept[t].chunk(3, -1)
        of_r, of_u, of_c = (None,) * 3 if of_gates is None else of_gates[t].chunk(3, -1)
        du, dc = _plus(g * (c - hs[t]), of_u), _plus(g * u, of_c)
        delta_c[t], db = activation.pullback(dc, c, None, b)
        if db is not None:
            grad_b = grad_b + db.sum(0)
        v = delta_c[t] @ W_c
        dr = _plus(v * hs[t], of_r)
        delta_gates[t] = torch.cat((dr * (r * (1 - r)), du * (u * (1 - u))), -1)
        carry = torch.addmm(g * (1 - u) + v * r, delta_gates[t], W_gates)
    delta = torch.cat((torch.cat(delta_gates), torch.cat(delta_c)), -1).view(gates.shape)
    return {
        "h0": torch.cat((carry, *reversed(ended))),
        "W": _grad_W(delta, before, states, call) if "W" in needed else None,
        "b": grad_b,
        **projection_gradients(delta, call.x, call.U, needed),
    }


def _plus(gradient: Tensor, more: Tensor | None) -> Tensor:
    return gradient if more is None else gradient + more


def _grad_W(delta: Tensor, before: Tensor, states: GruStates, call: GruCall) -> Tensor:
    """The gradients of all three matrices, laid out as :func:`product_of_rows` does."""
    H = before.shape[-1]
    delta_gates, delta_c = delta.split((2 * H, H), -1)
    of_gates = outer_products(delta_gates, states.h, call.h0, call.batch_sizes, call.reverse)
    reset = states.gates[..., :H] * before
    of_candidate = product_of_rows(delta_c.flatten(0, -2), reset.flatten(0, -2))
    if delta.is_cuda:
        return torch.cat((of_gates, of_candidate))
    return torch.cat((of_gates.mT, of_candidate.mT), 1).mT


def _shapes(call: GruCall) -> GruStates:
    shape, H = call.x.shape[:-1], call.h0.shape[-1]
    return GruStates(call.x.new_empty(*shape, H), call.x.new_empty(*shape, 3 * H))


_gru = Operator(
    "gru",
    call=GruCall,
    states=GruStates,
    gradients=GruGradients,
    loop=_loop,
    gradient=_gradient,
    shapes=_shapes,
    scan=gru_scan,
    kernels={
        "cpu": Kernels(cpu.refusal, cpu.gru, cpu.gru_backward),
        "cuda": Kernels(cuda.refusal, cuda.gru, cuda.gru_backward, cuda.takes_networks),
    },
    # without U nothing has to be multiplied by x
    kept_input=lambda call, states: states.gates if call.U is None else call.x,
)
