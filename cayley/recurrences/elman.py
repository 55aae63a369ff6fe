r"""The recurrence :math:`h_t = \phi(U x_t + c + W h_{t-1}; b)` and its gradient."""

from collections.abc import Sequence

import torch
from torch import Tensor

from cayley.activations import ACTIVATIONS
from cayley.kernels.cpu import elman as cpu
from cayley.kernels.cpu import native
from cayley.kernels.cuda import elman as cuda
from cayley.kernels.cuda.runtime.projection import project_on_cuda
from cayley.kernels.dispatch import backend_in_force, runs_on
from cayley.kernels.operator import at_once, differentiable_at_once
from cayley.kernels.projection import all_gradients, check_projection, project
from cayley.kernels.steps import (
    check_devices,
    check_sequence,
    empty_gradient,
    outer_products,
    rows,
    step_order,
    step_sizes,
)
from cayley.tracing import no_autocast, transforms_active

__all__ = ["elman", "elman_loop"]


def elman_loop(
    x: Tensor,
    h0: Tensor,
    W: Tensor,
    b: Tensor | None = None,
    *,
    U: Tensor | None = None,
    c: Tensor | None = None,
    nonlinearity: str = "tanh",
    batch_sizes: Tensor | None = None,
    reverse: bool = False,
) -> Tensor:
    r"""The recurrence as the loop that defines it; :func:`elman` computes the same.

    .. math:: h_t = \phi(U x_t + c + W h_{t-1}; b), \qquad t = 1, \dots, T

    Arguments:
        x: The input, (T, B, I), or without U what it contributes to each step, (T, B, H); or the
            steps one after another, (N, ·), with ``batch_sizes``.
        h0: The state before the first step, (B, H).
        W: The recurrent matrix, (H, H).
        b: The threshold of modReLU, (H), or (H/2) for ``"modrelu_stacked"``.
        U: The input's matrix, (H, I); None where x is what the input contributes.
        c: A bias beside U, (H).
        nonlinearity: A key of :data:`cayley.activations.ACTIVATIONS`.
        batch_sizes: How many sequences have a step t, never increasing, (T), on the CPU: the
            layout of :class:`torch.nn.utils.rnn.PackedSequence`.
        reverse: Whether time runs from the last step to the first.

    Returns:
        The states of all steps, (T, B, H) or (N, H).

    Example:
        >>> x, W = torch.ones(3, 1, 1), torch.ones(1, 1)
        >>> elman_loop(x, torch.zeros(1, 1), W, nonlinearity="identity").flatten()
        tensor([1., 2., 3.])
    """
    check_elman(x, h0, W, b, U, c, batch_sizes, nonlinearity)
    return _forward(project(x, U, c), h0, W, b, batch_sizes, reverse, nonlinearity)[0]


def elman(
    x: Tensor,
    h0: Tensor,
    W: Tensor,
    b: Tensor | None = None,
    *,
    U: Tensor | None = None,
    c: Tensor | None = None,
    nonlinearity: str = "tanh",
    batch_sizes: Tensor | None = None,
    reverse: bool = False,
) -> Tensor:
    r"""The recurrence of :func:`elman_loop` as one operator with a gradient written by hand.

    With :math:`g_t = \partial L/\partial h_t + W^\top \delta_{t+1}` and
    :math:`\delta_t = \phi'(z_t)^\top g_t`, the gradients are :math:`U^\top \delta_t` for
    :math:`x_t`, :math:`W^\top \delta_1` for :math:`h_0`, and sums over all steps for the others:
    :math:`\sum_t \delta_t h_{t-1}^\top` for W, :math:`\sum_t \delta_t x_t^\top` for U and
    :math:`\sum_t \delta_t` for c. Only h is kept for it: h tells φ′ (the complex modReLU keeps z
    too). To ``torch.compile`` and ``torch.export`` it is a single node, whatever T.
    Transforms of :mod:`torch.func` see the loop, which they know how to differentiate and batch.

    Arguments and the result are those of :func:`elman_loop`.

    Example:
        >>> x, h0, W = torch.randn(5, 2, 3), torch.zeros(2, 3), torch.eye(3)
        >>> torch.testing.assert_close(elman(x, h0, W), elman_loop(x, h0, W))
    """
    check_elman(x, h0, W, b, U, c, batch_sizes, nonlinearity)
    if transforms_active():
        return _forward(project(x, U, c), h0, W, b, batch_sizes, reverse, nonlinearity)[0]
    arguments = (x, h0, W, b, U, c, batch_sizes, reverse, nonlinearity, backend_in_force())
    return differentiable_at_once(_elman, _KERNELS, _save, _differentiate, *arguments)[0]


def check_elman(
    x: Tensor,
    h0: Tensor,
    W: Tensor,
    b: Tensor | None,
    U: Tensor | None,
    c: Tensor | None,
    batch_sizes: Tensor | None,
    nonlinearity: str,
) -> None:
    """Raise unless the arguments of :func:`elman` fit together."""
    if nonlinearity not in ACTIVATIONS:
        raise ValueError(f"expected a nonlinearity of {sorted(ACTIVATIONS)}, got {nonlinearity!r}")
    threshold = ACTIVATIONS[nonlinearity].threshold
    if (b is not None) != threshold:
        raise ValueError(
            f"{nonlinearity} expected {'a threshold b' if threshold else 'no b: add it to x'}, got "
            f"{'none' if b is None else tuple(b.shape)}"
        )
    H = W.shape[-1]
    if W.shape != (H, H) or (U is None and x.shape[-1] != H) or h0.shape[-1] != H:
        raise ValueError(
            "expected x (..., H), h0 (B, H) and W (H, H), got "
            f"{tuple(x.shape)}, {tuple(h0.shape)} and {tuple(W.shape)}"
        )
    check_projection(x, U, c, H)
    if b is not None and len(b) != (H // 2 if ACTIVATIONS[nonlinearity].saves_z else H):
        raise ValueError(f"expected one threshold a unit for {nonlinearity}, got {len(b)}, H = {H}")
    check_sequence(x, h0, batch_sizes)
    check_devices(x, h0, W, b, U, c)


def _forward(
    x: Tensor,
    h0: Tensor,
    W: Tensor,
    b: Tensor | None,
    batch_sizes: Tensor | None,
    reverse: bool,
    nonlinearity: str,
) -> tuple[Tensor, Tensor]:
    """All h, and all z where the activation's derivative needs them (else an empty tensor)."""
    activation = ACTIVATIONS[nonlinearity]
    sizes = step_sizes(x, batch_sizes)
    xs = x.reshape(-1, x.shape[-1]).split(sizes)
    hs, zs = list(xs), list(xs)
    # a contiguous transpose makes every one of the T products faster
    Wt = W.mT.contiguous()
    h = h0[:0]
    for t in step_order(len(sizes), reverse):
        zs[t] = torch.addmm(xs[t], rows(h, h0, sizes[t]), Wt)
        h = hs[t] = activation.apply(zs[t], b)
    z = torch.cat(zs).view_as(x) if activation.saves_z else x.new_empty(0)
    return torch.cat(hs).view_as(x), z


def _backward(
    grad_h: Tensor,
    grad_z: Tensor | None,
    h: Tensor,
    z: Tensor,
    h0: Tensor,
    W: Tensor,
    b: Tensor | None,
    batch_sizes: Tensor | None,
    reverse: bool,
    nonlinearity: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients with respect to x (that is δ), h0 and b, by differentiable operations."""
    activation = ACTIVATIONS[nonlinearity]
    sizes = step_sizes(h, batch_sizes)
    gs, hs = (v.reshape(-1, h.shape[-1]).split(sizes) for v in (grad_h, h))
    zs = z.view(-1, h.shape[-1]).split(sizes) if activation.saves_z else [None] * len(sizes)
    gzs = None if grad_z is None else grad_z.reshape(-1, h.shape[-1]).split(sizes)
    deltas = list(hs)
    grad_b = h.new_zeros(0) if b is None else torch.zeros_like(b)
    ended: list[Tensor] = []
    delta = h0[:0]
    for t in step_order(len(sizes), not reverse):
        if len(delta) == sizes[t]:
            g = torch.addmm(gs[t], delta, W)
        else:
            # Time runs backwards here. Sequences that have no step before this one in the order
            # of the recurrence hand their gradient to h0; those that end here receive none.
            carry = delta @ W
            B = min(sizes[t], len(carry))
            ended.append(carry[B:])
            g = torch.cat((gs[t][:B] + carry[:B], gs[t][B:]))
        delta, db = activation.pullback(g, hs[t], zs[t], b)
        if db is not None:
            grad_b = grad_b + db.sum(0)
        if gzs is not None:
            delta = delta + gzs[t]
        deltas[t] = delta
    grad_h0 = torch.cat((delta @ W, *reversed(ended)))
    return torch.cat(deltas).view_as(h), grad_h0, grad_b


def _all_gradients(
    delta: Tensor,
    grad_h0: Tensor,
    grad_b: Tensor,
    h: Tensor,
    x: Tensor,
    h0: Tensor,
    U: Tensor | None,
    batch_sizes: Tensor | None,
    reverse: bool,
    wanted: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients with respect to x, h0, W, b, U and c; empty where they are not wanted."""
    grad_W = outer_products(delta, h, h0, batch_sizes, reverse) if wanted[1] else None
    return all_gradients(delta, grad_h0, grad_W, grad_b, x, U, wanted)


@torch.library.custom_op("cayley::elman", mutates_args=())
def _elman(
    x: Tensor,
    h0: Tensor,
    W: Tensor,
    b: Tensor | None,
    U: Tensor | None,
    c: Tensor | None,
    batch_sizes: Tensor | None,
    reverse: bool,
    nonlinearity: str,
    backend: str,
) -> tuple[Tensor, Tensor]:
    runs_on("reference", backend, x, None)
    return _forward(project(x, U, c), h0, W, b, batch_sizes, reverse, nonlinearity)


@_elman.register_kernel("cpu")
def _elman_on_cpu(x, h0, W, b, U, c, batch_sizes, reverse, nonlinearity, backend):
    if runs_on("cpu", backend, x, native.refusal(x, h0, W, b, U, c)):
        return cpu.elman(x, h0, W, b, U, c, batch_sizes, reverse, nonlinearity)
    return _forward(project(x, U, c), h0, W, b, batch_sizes, reverse, nonlinearity)


@_elman.register_kernel("cuda")
def _elman_on_cuda(x, h0, W, b, U, c, batch_sizes, reverse, nonlinearity, backend):
    refusal = cuda.refusal(nonlinearity, h0, x, W, b, U, c, batch_sizes=batch_sizes)
    if runs_on("cuda", backend, x, refusal):
        x = project_on_cuda(x, U, c)
        return cuda.elman(x, h0, W, b, batch_sizes, reverse, nonlinearity)
    return _forward(project(x, U, c), h0, W, b, batch_sizes, reverse, nonlinearity)


@_elman.register_fake
def _(x, h0, W, b, U, c, batch_sizes, reverse, nonlinearity, backend):
    shape = (*x.shape[:-1], h0.shape[-1])
    return x.new_empty(shape), x.new_empty(shape if ACTIVATIONS[nonlinearity].saves_z else 0)


@torch.library.custom_op("cayley::elman_backward", mutates_args=())
def _elman_backward(
    grad_h: Tensor,
    grad_z: Tensor | None,
    h: Tensor,
    z: Tensor,
    x: Tensor,
    h0: Tensor,
    W: Tensor,
    b: Tensor | None,
    U: Tensor | None,
    batch_sizes: Tensor | None,
    reverse: bool,
    nonlinearity: str,
    wanted: Sequence[bool],
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    found = _backward(grad_h, grad_z, h, z, h0, W, b, batch_sizes, reverse, nonlinearity)
    return _all_gradients(*found, h, x, h0, U, batch_sizes, reverse, wanted)


@_elman_backward.register_kernel("cpu")
def _elman_backward_on_cpu(
    grad_h, grad_z, h, z, x, h0, W, b, U, batch_sizes, reverse, nonlinearity, wanted, backend
):
    if runs_on("cpu", backend, h, native.refusal(h, grad_h, grad_z, x, h0, W, b, U)):
        arguments = (grad_h, grad_z, h, z, x, h0, W, b, U)
        return cpu.elman_backward(*arguments, batch_sizes, reverse, nonlinearity, wanted)
    found = _backward(grad_h, grad_z, h, z, h0, W, b, batch_sizes, reverse, nonlinearity)
    return _all_gradients(*found, h, x, h0, U, batch_sizes, reverse, wanted)


@_elman_backward.register_kernel("cuda")
def _elman_backward_on_cuda(
    grad_h, grad_z, h, z, x, h0, W, b, U, batch_sizes, reverse, nonlinearity, wanted, backend
):
    refusal = cuda.refusal(
        nonlinearity, h, grad_h, h0, W, b, batch_sizes=batch_sizes, grad_z=grad_z
    )
    run = cuda.elman_backward if runs_on("cuda", backend, h, refusal) else _backward
    found = run(grad_h, grad_z, h, z, h0, W, b, batch_sizes, reverse, nonlinearity)
    return _all_gradients(*found, h, x, h0, U, batch_sizes, reverse, wanted)


@_elman_backward.register_fake
def _(grad_h, grad_z, h, z, x, h0, W, b, U, batch_sizes, reverse, nonlinearity, wanted, backend):
    of_x, of_W, of_U, of_c = wanted
    return (
        h.new_empty((h if U is None else x).shape if of_x else 0),
        h.new_empty(h0.shape),
        empty_gradient(h, W if of_W else None),
        h.new_empty(0 if b is None else b.shape),
        empty_gradient(h, U if of_U else None),
        h.new_empty(h0.shape[1] if of_c else 0),
    )


def _save(ctx, inputs, output):
    x, h0, W, b, U, _, batch_sizes, *ctx.options = inputs
    # without U nothing has to be multiplied by x
    ctx.save_for_backward(*output, x if U is not None else output[1], h0, W, b, U, batch_sizes)
    # z has a gradient only where the gradient itself is differentiated
    ctx.set_materialize_grads(False)


def _differentiate(ctx, grad_h, grad_z):
    # read once: activation checkpointing gives them out once
    saved = ctx.saved_tensors
    with no_autocast(saved[0].device):
        return _gradients(ctx, saved, grad_h, grad_z)


def _gradients(ctx, saved, grad_h, grad_z):
    h, z, x, h0, W, b, U, batch_sizes = saved
    reverse, nonlinearity, backend = ctx.options
    of_x, _, of_W, _, of_U, of_c, *_ = ctx.needs_input_grad
    wanted = [of_x, of_W, of_U, of_c]
    if grad_h is None:
        grad_h = torch.zeros_like(h)
    if not ACTIVATIONS[nonlinearity].saves_z:
        grad_z = None
    # When the gradient is to be differentiated again, its own operations must be recorded.
    if torch.is_grad_enabled():
        found = _backward(grad_h, grad_z, h, z, h0, W, b, batch_sizes, reverse, nonlinearity)
        found = _all_gradients(*found, h, x, h0, U, batch_sizes, reverse, wanted)
    else:
        arguments = (grad_h, grad_z, h, z, x, h0, W, b, U)
        options = (batch_sizes, reverse, nonlinearity, wanted, backend)
        found = at_once(_elman_backward, _BACKWARD_KERNELS, h, *arguments, *options)
    needed = zip(found, ctx.needs_input_grad, strict=False)
    return *(gradient if need else None for gradient, need in needed), *(None,) * 4


_elman.register_autograd(_differentiate, setup_context=_save)

_KERNELS = {"cpu": _elman_on_cpu, "cuda": _elman_on_cuda}
_BACKWARD_KERNELS = {"cpu": _elman_backward_on_cpu, "cuda": _elman_backward_on_cuda}
