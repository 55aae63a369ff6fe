"""The gated recurrence (GRU) with the reset gate before the product, and its gradient."""

from collections.abc import Sequence

import torch
from torch import Tensor

from cayley.activations import ACTIVATIONS, Activation
from cayley.kernels.cpu import gru as cpu
from cayley.kernels.cpu import native
from cayley.kernels.cuda import gru as cuda
from cayley.kernels.cuda.runtime.projection import project_on_cuda
from cayley.kernels.dispatch import backend_in_force, runs_on
from cayley.kernels.operator import at_once, differentiable_at_once, separate
from cayley.kernels.projection import all_gradients, check_projection, project
from cayley.kernels.steps import (
    check_devices,
    check_sequence,
    empty_gradient,
    outer_products,
    previous_states,
    product_of_rows,
    rows,
    step_order,
    step_sizes,
)
from cayley.tracing import no_autocast, transforms_active

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
        x: What the input contributes to each step, biases included, as
            :math:`[x^r, x^u, x^c]`, (T, B, 3H), or with U the input itself, (T, B, I); or the steps
            one after another, (N, ·), with ``batch_sizes``.
        h0: The state before the first step, (B, H).
        W: The recurrent matrices one above another, :math:`[W_r; W_u; W_c]`, (3H, H).
        b: The threshold of φ = modReLU, (H); None for φ = tanh.
        U: The input's matrix, (3H, I): the input contributes U x + c.
        c: A bias beside U, (3H).
        batch_sizes: How many sequences have a step t, never increasing, (T), on the CPU: the
            layout of :class:`torch.nn.utils.rnn.PackedSequence`.
        reverse: Whether time runs from the last step to the first.

    Returns:
        The states of all steps, (T, B, H) or (N, H).

    Example:
        With all gates half open and the candidate 1, every step goes half of the way to 1.

        >>> x = torch.tensor([0.0, 0.0, 1.0]).expand(3, 1, 3)
        >>> gru_loop(x, torch.zeros(1, 1), torch.zeros(3, 1), b=torch.zeros(1)).flatten()
        tensor([0.5000, 0.7500, 0.8750])
    """
    check_gru(x, h0, W, b, U, c, batch_sizes)
    return _forward(project(x, U, c), h0, W, b, batch_sizes, reverse)[0]


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

    and :math:`\delta_t` is the gradient of what the input contributes. The gradients of W are
    products over all steps: :math:`\sum_t [\delta^r_t; \delta^u_t] h_{t-1}^\top` and
    :math:`\sum_t \delta^c_t (r_t \odot h_{t-1})^\top`. For all this h, r, u and c are kept; c tells
    φ′. To ``torch.compile`` and ``torch.export`` it is a single node, whatever T.

    Arguments and the result are those of :func:`gru_loop`.

    Example:
        >>> x, h0, W = torch.randn(5, 2, 9), torch.zeros(2, 3), torch.randn(9, 3)
        >>> torch.testing.assert_close(gru(x, h0, W), gru_loop(x, h0, W))
    """
    check_gru(x, h0, W, b, U, c, batch_sizes)
    if transforms_active():
        return _forward(project(x, U, c), h0, W, b, batch_sizes, reverse)[0]
    arguments = (x, h0, W, b, U, c, batch_sizes, reverse, backend_in_force())
    return differentiable_at_once(_gru, _KERNELS, _save, _differentiate, *arguments)[0]


def check_gru(
    x: Tensor,
    h0: Tensor,
    W: Tensor,
    b: Tensor | None,
    U: Tensor | None,
    c: Tensor | None,
    batch_sizes: Tensor | None,
) -> None:
    """Raise unless the arguments of :func:`gru` fit together."""
    H = W.shape[-1]
    wrong_x = U is None and x.shape[-1] != 3 * H
    if W.shape != (3 * H, H) or wrong_x or h0.shape[-1] != H:
        raise ValueError(
            "expected x (..., 3H), h0 (B, H) and W (3H, H), got "
            f"{tuple(x.shape)}, {tuple(h0.shape)} and {tuple(W.shape)}"
        )
    check_projection(x, U, c, 3 * H)
    if b is not None and b.shape != (H,):
        raise ValueError(f"expected b of shape ({H},), one threshold a unit, got {tuple(b.shape)}")
    check_sequence(x, h0, batch_sizes)
    check_devices(x, h0, W, b, U, c)


def _activation(b: Tensor | None) -> Activation:
    return ACTIVATIONS["tanh" if b is None else "modrelu"]


def _forward(
    x: Tensor,
    h0: Tensor,
    W: Tensor,
    b: Tensor | None,
    batch_sizes: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """All h, and all [r, u, c] in the layout of x."""
    H = h0.shape[-1]
    activation = _activation(b)
    sizes = step_sizes(x, batch_sizes)
    xs = x.reshape(-1, 3 * H).split(sizes)
    hs, gates, cs = list(xs), list(xs), list(xs)
    # contiguous transposes make every one of the 2T products faster
    Wt_gates, Wt_c = W[: 2 * H].mT.contiguous(), W[2 * H :].mT.contiguous()
    h = h0[:0]
    for t in step_order(len(sizes), reverse):
        x_gates, x_c = xs[t].split((2 * H, H), -1)
        before = rows(h, h0, sizes[t])
        gates[t] = torch.addmm(x_gates, before, Wt_gates).sigmoid()
        r, u = gates[t].chunk(2, -1)
        cs[t] = activation.apply(torch.addmm(x_c, r * before, Wt_c), b)
        # (1 − u) h + u c, exactly h for u = 0 and exactly c for u = 1
        h = hs[t] = torch.lerp(before, cs[t], u)
    saved = torch.cat((torch.cat(gates), torch.cat(cs)), -1).view(x.shape)
    return torch.cat(hs).view(*x.shape[:-1], H), saved


def _backward(
    grad_h: Tensor,
    grad_saved: Tensor | None,
    h: Tensor,
    saved: Tensor,
    h0: Tensor,
    W: Tensor,
    b: Tensor | None,
    batch_sizes: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients with respect to x (δ), h0 and b, and all r ⊙ h, by differentiable operations."""
    H = h0.shape[-1]
    activation = _activation(b)
    sizes = step_sizes(h, batch_sizes)
    before = previous_states(h, h0, batch_sizes, reverse)
    gs, hs = (v.reshape(-1, H).split(sizes) for v in (grad_h, before))
    saves = saved.reshape(-1, 3 * H).split(sizes)
    grads = None if grad_saved is None else grad_saved.reshape(-1, 3 * H).split(sizes)
    W_gates, W_c = W.split((2 * H, H))
    delta_gates, delta_c = list(gs), list(gs)
    grad_b = h0.new_zeros(0) if b is None else torch.zeros_like(b)
    ended: list[Tensor] = []
    carry = h0[:0]
    for t in step_order(len(sizes), not reverse):
        # Time runs backwards here. Sequences that have no step before this one in the order of
        # the recurrence hand their gradient to h0; those that end here have none to receive.
        B = min(sizes[t], len(carry))
        ended.append(carry[B:])
        g = torch.cat((gs[t][:B] + carry[:B], gs[t][B:]))
        r, u, c = saves[t].chunk(3, -1)
        du, dc = g * (c - hs[t]), g * u
        if grads is not None:
            du, dc = du + grads[t][:, H : 2 * H], dc + grads[t][:, 2 * H :]
        delta_c[t], db = activation.pullback(dc, c, None, b)
        if db is not None:
            grad_b = grad_b + db.sum(0)
        v = delta_c[t] @ W_c
        dr = v * hs[t]
        if grads is not None:
            dr = dr + grads[t][:, :H]
        delta_gates[t] = torch.cat((dr * (r * (1 - r)), du * (u * (1 - u))), -1)
        carry = torch.addmm(g * (1 - u) + v * r, delta_gates[t], W_gates)
    grad_h0 = torch.cat((carry, *reversed(ended)))
    delta = torch.cat((torch.cat(delta_gates), torch.cat(delta_c)), -1)
    return delta.view(saved.shape), grad_h0, grad_b, saved[..., :H] * before


def _all_gradients(
    delta: Tensor,
    grad_h0: Tensor,
    grad_b: Tensor,
    reset: Tensor,
    h: Tensor,
    x: Tensor,
    h0: Tensor,
    U: Tensor | None,
    batch_sizes: Tensor | None,
    reverse: bool,
    wanted: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients with respect to x, h0, W, b, U and c; empty where they are not wanted."""
    grad_W = None
    if wanted[1]:
        H = h0.shape[-1]
        delta_gates, delta_c = delta.split((2 * H, H), -1)
        grad_gates = outer_products(delta_gates, h, h0, batch_sizes, reverse)
        grad_candidate = product_of_rows(delta_c.flatten(0, -2), reset.flatten(0, -2))
        if delta.is_cuda:
            grad_W = torch.cat((grad_gates, grad_candidate))
        else:
            grad_W = torch.cat((grad_gates.mT, grad_candidate.mT), 1).mT
    return all_gradients(delta, grad_h0, grad_W, grad_b, x, U, wanted)


@torch.library.custom_op("cayley::gru", mutates_args=())
def _gru(
    x: Tensor,
    h0: Tensor,
    W: Tensor,
    b: Tensor | None,
    U: Tensor | None,
    c: Tensor | None,
    batch_sizes: Tensor | None,
    reverse: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    runs_on("reference", backend, x, None)
    return _forward(project(x, U, c), h0, W, b, batch_sizes, reverse)


@_gru.register_kernel("cpu")
def _gru_on_cpu(x, h0, W, b, U, c, batch_sizes, reverse, backend):
    if runs_on("cpu", backend, x, native.refusal(x, h0, W, b, U, c)):
        return cpu.gru(x, h0, W, b, U, c, batch_sizes, reverse)
    return _forward(project(x, U, c), h0, W, b, batch_sizes, reverse)


@_gru.register_kernel("cuda")
def _gru_on_cuda(x, h0, W, b, U, c, batch_sizes, reverse, backend):
    if runs_on("cuda", backend, x, cuda.refusal(h0, x, W, b, U, c)):
        return cuda.gru(project_on_cuda(x, U, c), h0, W, b, batch_sizes, reverse)
    return _forward(project(x, U, c), h0, W, b, batch_sizes, reverse)


@_gru.register_fake
def _(x, h0, W, b, U, c, batch_sizes, reverse, backend):
    H = h0.shape[-1]
    return x.new_empty(*x.shape[:-1], H), x.new_empty(*x.shape[:-1], 3 * H)


@torch.library.custom_op("cayley::gru_backward", mutates_args=())
def _gru_backward(
    grad_h: Tensor,
    grad_saved: Tensor | None,
    h: Tensor,
    saved: Tensor,
    x: Tensor,
    h0: Tensor,
    W: Tensor,
    b: Tensor | None,
    U: Tensor | None,
    batch_sizes: Tensor | None,
    reverse: bool,
    wanted: Sequence[bool],
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    found = _backward(grad_h, grad_saved, h, saved, h0, W, b, batch_sizes, reverse)
    return _all_gradients(*found, h, x, h0, U, batch_sizes, reverse, wanted)


@_gru_backward.register_kernel("cpu")
def _gru_backward_on_cpu(
    grad_h, grad_saved, h, saved, x, h0, W, b, U, batch_sizes, reverse, wanted, backend
):
    if runs_on("cpu", backend, h, native.refusal(h, grad_h, grad_saved, saved, x, h0, W, b, U)):
        arguments = (grad_h, grad_saved, h, saved, x, h0, W, b, U)
        return cpu.gru_backward(*arguments, batch_sizes, reverse, wanted)
    found = _backward(grad_h, grad_saved, h, saved, h0, W, b, batch_sizes, reverse)
    return _all_gradients(*found, h, x, h0, U, batch_sizes, reverse, wanted)


def _gru_backward_on_cuda(
    grad_h, grad_saved, h, saved, x, h0, W, b, U, batch_sizes, reverse, wanted, backend
):
    refusal = cuda.refusal(h0, h, grad_h, saved, W, b, grad_saved=grad_saved)
    if runs_on("cuda", backend, h, refusal):
        arguments = (grad_h, h, saved, x, h0, W, b, U)
        return cuda.gru_backward(*arguments, batch_sizes, reverse, wanted)
    found = _backward(grad_h, grad_saved, h, saved, h0, W, b, batch_sizes, reverse)
    return _all_gradients(*found, h, x, h0, U, batch_sizes, reverse, wanted)


@_gru_backward.register_kernel("cuda")
def _(*arguments):
    return (*separate(_gru_backward_on_cuda(*arguments)),)


@_gru_backward.register_fake
def _(grad_h, grad_saved, h, saved, x, h0, W, b, U, batch_sizes, reverse, wanted, backend):
    of_x, of_W, of_U, of_c = wanted
    H = h0.shape[-1]
    return (
        h.new_empty((saved if U is None else x).shape if of_x else 0),
        h.new_empty(h0.shape),
        empty_gradient(h, W if of_W else None),
        h.new_empty(0 if b is None else b.shape),
        empty_gradient(h, U if of_U else None),
        h.new_empty(3 * H if of_c else 0),
    )


def _save(ctx, inputs, output):
    x, h0, W, b, U, _, batch_sizes, *ctx.options = inputs
    # without U nothing has to be multiplied by x
    ctx.save_for_backward(*output, output[0] if U is None else x, h0, W, b, U, batch_sizes)
    # the gates have a gradient only where the gradient itself is differentiated
    ctx.set_materialize_grads(False)


def _differentiate(ctx, grad_h, grad_saved):
    # read once: activation checkpointing gives them out once
    kept = ctx.saved_tensors
    with no_autocast(kept[0].device):
        return _gradients(ctx, kept, grad_h, grad_saved)


def _gradients(ctx, kept, grad_h, grad_saved):
    h, saved, x, h0, W, b, U, batch_sizes = kept
    reverse, backend = ctx.options
    of_x, _, of_W, _, of_U, of_c, *_ = ctx.needs_input_grad
    wanted = [of_x, of_W, of_U, of_c]
    if grad_h is None:
        grad_h = torch.zeros_like(h)
    # When the gradient is to be differentiated again, its own operations must be recorded.
    if torch.is_grad_enabled():
        found = _backward(grad_h, grad_saved, h, saved, h0, W, b, batch_sizes, reverse)
        found = _all_gradients(*found, h, x, h0, U, batch_sizes, reverse, wanted)
    else:
        arguments = (grad_h, grad_saved, h, saved, x, h0, W, b, U)
        options = (batch_sizes, reverse, wanted, backend)
        found = at_once(_gru_backward, _BACKWARD_KERNELS, h, *arguments, *options)
    needed = zip(found, ctx.needs_input_grad, strict=False)
    return *(gradient if need else None for gradient, need in needed), *(None,) * 3


_gru.register_autograd(_differentiate, setup_context=_save)

_KERNELS = {"cpu": _gru_on_cpu, "cuda": _gru_on_cuda}
_BACKWARD_KERNELS = {"cpu": _gru_backward_on_cpu, "cuda": _gru_backward_on_cuda}
