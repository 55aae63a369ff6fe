"""The gated recurrence step by step, by products of a library and a small kernel after each.

See :mod:`cayley.kernels.cuda.runtime.stepwise` for when this is the faster plan. Results are those
of the other kernels, to rounding, and in the same layout.
"""

import torch
from torch import Tensor

from cayley.kernels.cuda.runtime.blocks import Options
from cayley.kernels.cuda.runtime.nvrtc import Kernel, on
from cayley.kernels.cuda.runtime.parts import Part, parts
from cayley.kernels.cuda.runtime.step_kernels import row_layout, step_kernel, step_views
from cayley.kernels.steps import rows, step_order

__all__ = ["gru_steps", "gru_steps_backward"]


def gru_steps(
    x: Tensor,
    h0: Tensor,
    W: Tensor,
    b: Tensor | None,
    h: Tensor,
    gates: Tensor,
    options: Options,
    batch_sizes: Tensor | None,
    table: Tensor | None,
    T: int,
    B: int,
    reverse: int,
) -> None:
    """Write the states and gates of all steps.

    Arguments:
        x: The contribution of the input, (T, B, 3H) or (N, 3H).
        h0: The states before the first step, (B, H), with B > 0.
        W: The stacked matrices, (3H, H).
        b: The threshold of modReLU, (H).
        h: Where states go, (T, B, H) or (N, H).
        gates: Where r, u and c go, in the shape of x.
        options: Further constants of the kernels.
        batch_sizes: The sizes of packed sequences, (T), on the CPU.
        table: The table of their steps.
        T: The number of steps.
        B: The number of sequences.
        reverse: Whether time runs from the last step to the first.
    """
    H, device = h0.shape[-1], h0.device.index
    (room,) = parts(x, B * H)
    reset = room.view(B, H)
    W_gates, W_c = W.mT.split((2 * H, H), 1)
    hs = step_views(h, batch_sizes, B, H)
    of_gates, of_c = _products(gates, batch_sizes, B, H)
    arguments = (x, h0, b, h, gates, room, table, T, B, reverse)
    with on(device):
        after_gates, after_c = (
            _kernel(device, "gru_step_forward", H, options, product).repeated(*arguments)
            for product in range(2)
        )
        before = h0
        for t in step_order(T, bool(reverse)):
            n = len(hs[t])
            if len(before) != n:
                before = rows(before, h0, n)
            torch.mm(before, W_gates, out=of_gates[t])
            after_gates(n, t)
            torch.mm(reset if n == B else reset[:n], W_c, out=of_c[t])
            after_c(n, t)
            before = hs[t]


def gru_steps_backward(
    grad_h: Tensor,
    h: Tensor,
    gates: Tensor,
    h0: Tensor,
    W: Tensor,
    delta: Tensor | Part,
    grad_h0: Tensor | Part,
    partial: Part,
    factors: Part,
    options: Options,
    batch_sizes: Tensor | None,
    table: Tensor | None,
    T: int,
    B: int,
    reverse: int,
) -> None:
    """Write the gradients of the gates' arguments, of h0, and what those of parameters need.

    Arguments:
        grad_h: The gradient of h, in its shape.
        h: The states, (T, B, H) or (N, H).
        gates: What :func:`gru_steps` has written.
        h0: The states before the first step, (B, H), with B > 0.
        W: The stacked matrices, (3H, H).
        delta: Where the gradient of x goes.
        grad_h0: Where that of h0 goes.
        partial: Where for each row the sums of delta and the gradient of b go, (B, 4H).
        factors: Where what W was multiplied with goes, (T, B, 2H) or (N, 2H).
        options: Further constants of the kernels.
        batch_sizes: The sizes of packed sequences, (T), on the CPU.
        table: The table of their steps.
        T: The number of steps.
        B: The number of sequences.
        reverse: Whether time runs from the last step to the first.
    """
    H, device = h0.shape[-1], h0.device.index
    (room,) = parts(h, B * H)
    v, carry = room.view(B, H), grad_h0.view(B, H)
    W_gates, W_c = W.split((2 * H, H))
    of_gates, of_c = _products(delta, batch_sizes, B, H)
    arguments = (grad_h, h, gates, h0, room, delta, grad_h0, partial, factors)
    with on(device):
        before_v, after_v = (
            _kernel(device, "gru_step_backward", H, options, product).repeated(
                *arguments, table, T, B, reverse
            )
            for product in range(2)
        )
        for t in step_order(T, not reverse):
            n = len(of_c[t])
            before_v(n, t)
            torch.mm(of_c[t], W_c, out=v if n == B else v[:n])
            after_v(n, t)
            (carry if n == B else carry[:n]).addmm_(of_gates[t], W_gates)


def _products(
    array: Tensor | Part, batch_sizes: Tensor | None, B: int, H: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Of each step what belongs to the product with [W_r; W_u], and to that with W_c."""
    gates, candidate = slice(2 * H), slice(2 * H, None)
    of_gates = step_views(array, batch_sizes, B, 3 * H, gates)
    return of_gates, step_views(array, batch_sizes, B, 3 * H, candidate)


def _kernel(device: int, source: str, H: int, options: Options, product: int) -> Kernel:
    """The kernel of the launch with this number of a step."""
    layout = row_layout(H, joined=False)
    return step_kernel(device, source, H, layout, (*options, ("int PRODUCT", str(product))))
