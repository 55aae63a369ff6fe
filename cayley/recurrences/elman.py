r"""The recurrence :math:`h_t = \phi(U x_t + c + W h_{t-1}; b)` and its gradient."""

from collections.abc import Collection

import torch
from torch import Tensor

from cayley.activations import ACTIVATIONS
from cayley.kernels.calls import ElmanCall, ElmanGradients, ElmanStates
from cayley.kernels.cpu import elman as cpu
from cayley.kernels.cuda import elman as cuda
from cayley.kernels.operator import Found, Kernels, Operator
from cayley.kernels.projection import check_projection, project, projection_gradients
from cayley.kernels.steps import (
    check_devices,
    check_sequence,
    outer_products,
    rows,
    step_order,
    step_sizes,
)
from cayley.recurrences.scans import elman_scan

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
    is_complex: bool = False,
) -> Tensor:
    r"""The recurrence as the loop that defines it; :func:`elman` computes the same.

    .. math:: h_t = \phi(U x_t + c + W h_{t-1}; b), \qquad t = 1, \dots, T

    Arguments:
        x: The input, (T, B, I), or without U its contribution to each step, (T, B, H); with
            ``batch_sizes``, packed steps, (N, ·).
        h0: The state before the first step, (B, H).
        W: The recurrent matrix, (H, H).
        b: The threshold of modReLU, (H), or (H/2) for ``"modrelu_stacked"``.
        U: The input matrix, (H, I); None if x is already its product with the input.
        c: A bias that is added to U x, (H).
        nonlinearity: A key of :data:`cayley.activations.ACTIVATIONS`.
        batch_sizes: How many sequences have a step t, never increasing, (T), on the CPU: the
            layout of :class:`torch.nn.utils.rnn.PackedSequence`.
        reverse: Whether time runs from the last step to the first.
        is_complex: Whether W is [[R, −C], [C, R]], a complex matrix acting on real features. This
            is not checked: a kernel may hold R and C once, and read only half of W.

    Returns:
        The states of all steps, (T, B, H) or (N, H).

    Example:
        >>> x, W = torch.ones(3, 1, 1), torch.ones(1, 1)
        >>> elman_loop(x, torch.zeros(1, 1), W, nonlinearity="identity").flatten()
        tensor([1., 2., 3.])
    """
    call = ElmanCall(x, h0, W, b, U, c, batch_sizes, reverse, nonlinearity, is_complex)
    _check(call)
    return _loop(call).h


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
    is_complex: bool = False,
) -> Tensor:
    r"""The recurrence of :func:`elman_loop` as one operator with a gradient written by hand.

    With :math:`g_t = \partial L/\partial h_t + W^\top \delta_{t+1}` and
    :math:`\delta_t = \phi'(z_t)^\top g_t`, the gradients are :math:`U^\top \delta_t` for
    :math:`x_t`, :math:`W^\top \delta_1` for :math:`h_0`, and sums over all steps for the others:
    :math:`\sum_t \delta_t h_{t-1}^\top` for W, :math:`\sum_t \delta_t x_t^\top` for U and
    :math:`\sum_t \delta_t` for c. Only h is saved for them, since φ′ is a function of h (the
    complex modReLU saves z too). For ``torch.compile`` and ``torch.export`` it is a single node for
    any T. Under ``vmap`` and ``grad`` of :mod:`torch.func` kernels run G networks with their own W,
    on a GPU in a few launches; other transforms use the loop.

    Arguments and the result are those of :func:`elman_loop`.

    Example:
        >>> x, h0, W = torch.randn(5, 2, 3), torch.zeros(2, 3), torch.eye(3)
        >>> torch.testing.assert_close(elman(x, h0, W), elman_loop(x, h0, W))
    """
    call = ElmanCall(x, h0, W, b, U, c, batch_sizes, reverse, nonlinearity, is_complex)
    _check(call)
    return _elman(call).h


def _check(call: ElmanCall) -> None:
    """Raise unless the arguments of :func:`elman` fit together."""
    x, h0, W, b, U, c, batch_sizes, _, nonlinearity, is_complex = call
    if nonlinearity not in ACTIVATIONS:
        raise ValueError(f"expected a nonlinearity of {sorted(ACTIVATIONS)}, got {nonlinearity!r}")
    activation, H = ACTIVATIONS[nonlinearity], W.shape[-1]
    if (b is not None) != activation.threshold:
        what = "a threshold b" if activation.threshold else "no b: add it to x"
        got = "none" if b is None else tuple(b.shape)
        raise ValueError(f"{nonlinearity} expected {what}, got {got}")
    if W.shape != (H, H) or (U is None and x.shape[-1] != H) or h0.shape[-1] != H:
        raise ValueError(
            "expected x (..., H), h0 (B, H) and W (H, H), got "
            f"{tuple(x.shape)}, {tuple(h0.shape)} and {tuple(W.shape)}"
        )
    if is_complex and H % 2 == 1:
        raise ValueError(f"expected W of H/2 complex units, so an even H, got H = {H}")
    check_projection(x, U, c, H)
    if b is not None and len(b) != activation.thresholds(H):
        raise ValueError(f"{nonlinearity} expected one threshold per unit, got {len(b)}, H = {H}")
    check_sequence(x, h0, batch_sizes)
    check_devices(x, h0, W, b, U, c)


def _loop(call: ElmanCall) -> ElmanStates:
    activation, h0, b = ACTIVATIONS[call.nonlinearity], call.h0, call.b
    x = project(call.x, call.U, call.c)
    sizes = step_sizes(x, call.batch_sizes)
    xs = x.reshape(-1, x.shape[-1]).split(sizes)
    hs, zs = list(xs), list(xs)
    # a contiguous transpose makes each of the T products faster
    Wt = call.W.mT.contiguous()
    h = h0[:0]
    for t in step_order(len(sizes), call.reverse):
        zs[t] = torch.addmm(xs[t], rows(h, h0, sizes[t]), Wt)
        h = hs[t] = activation.apply(zs[t], b)
    z = torch.cat(zs).view_as(x) if activation.needs_z else x.new_empty(0)
    return ElmanStates(torch.cat(hs).view_as(x), z)


def _gradient(
    gradients: ElmanGradients, states: ElmanStates, call: ElmanCall, needed: Collection[str]
) -> Found:
    """Gradients by differentiable operations."""
    activation, h0, W, b = ACTIVATIONS[call.nonlinearity], call.h0, call.W, call.b
    h, H = states.h, h0.shape[-1]
    sizes = step_sizes(h, call.batch_sizes)

    def steps(tensor: Tensor) -> tuple[Tensor, ...]:
        return tensor.reshape(-1, H).split(sizes)

    gs, hs = steps(gradients.h), steps(h)
    zs = steps(states.z) if activation.needs_z else [None] * len(sizes)
    gzs = None if gradients.z is None else steps(gradients.z)
    deltas = list(hs)
    grad_b = h0.new_zeros(0) if b is None else torch.zeros_like(b)
    ended: list[Tensor] = []
    delta = h0[:0]
    for t in step_order(len(sizes), not call.reverse):
        if len(delta) == sizes[t]:
            g = torch.addmm(gs[t], delta, W)
        else:
            # Time runs backwards here. Sequences whose first step (in the order of the recurrence)
            # this is pass their gradient to h0; those whose last step it is receive none.
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
    all_deltas = torch.cat(deltas).view_as(h)
    return {
        "h0": torch.cat((delta @ W, *reversed(ended))),
        "W": outer_products(all_deltas, h, h0, call.batch_sizes, call.reverse)
        if "W" in needed
        else None,
        "b": grad_b,
        **projection_gradients(all_deltas, call.x, call.U, needed),
    }


def _shapes(call: ElmanCall) -> ElmanStates:
    shape = (*call.x.shape[:-1], call.h0.shape[-1])
    needs_z = ACTIVATIONS[call.nonlinearity].needs_z
    return ElmanStates(call.x.new_empty(shape), call.x.new_empty(shape if needs_z else 0))


_elman = Operator(
    "elman",
    call=ElmanCall,
    states=ElmanStates,
    gradients=ElmanGradients,
    loop=_loop,
    gradient=_gradient,
    shapes=_shapes,
    kernels={
        "cpu": Kernels(cpu.refusal, cpu.elman, cpu.elman_backward),
        "cuda": Kernels(
            cuda.refusal, cuda.elman, cuda.elman_backward, takes_networks=cuda.takes_networks
        ),
    },
    scan=elman_scan,
    # without U nothing has to be multiplied by x
    kept_input=lambda call, states: states.h if call.U is None else call.x,
)
