"""The gated recurrence and its gradient as one CUDA kernel each; see :mod:`cayley.recurrences.gru`.

A kernel runs all steps. A block computes one row of the batch, with the weights in its registers,
and in shared memory where those do not suffice. Sizes are constants of the compiled code. Packed
sequences are read as they are.
"""

import torch
from torch import Tensor

from cayley.recurrences.cuda.gates import Layout, Options, best_layout, launch
from cayley.recurrences.cuda.nvrtc import refused
from cayley.recurrences.cuda.packed import step_table
from cayley.recurrences.cuda.plans import chip

__all__ = ["gru", "gru_backward", "refusal"]


def refusal(h0: Tensor, *others: Tensor | None, grad_saved: Tensor | None = None) -> str | None:
    """Why the kernels cannot serve a call; None if they can.

    Arguments:
        h0: The state before the first step, (B, H).
        others: All other tensors of the call.
        grad_saved: The gradient of the gates.
    """
    if grad_saved is not None:
        return "the CUDA kernels give first derivatives only"
    if reason := refused(h0, *others):
        return reason
    H = h0.shape[-1]
    if _forward(H, h0.device.index) is None or _backward(H, h0.device.index) is None:
        name = torch.cuda.get_device_name(h0.device)
        return f"{3 * H} × {H} weights do not fit on a multiprocessor of {name}"
    return None


def gru(
    x: Tensor,
    h0: Tensor,
    W: Tensor,
    b: Tensor | None,
    batch_sizes: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """All h, and all [r, u, c] in the layout of x."""
    B, H = h0.shape
    x, h0, W = x.contiguous(), h0.contiguous(), W.contiguous()
    h, saved = x.new_empty(*x.shape[:-1], H), torch.empty_like(x)
    bias = None if b is None else b.contiguous()
    if B > 0:
        table, T = step_table(batch_sizes, x, B)
        layout, options = _forward(H, x.device.index), _options(b, table)
        arguments = (x, h0, W, bias, h, saved, table, T, B, int(reverse))
        launch("gru_forward", layout, options, B, *arguments)
    return h, saved


def gru_backward(
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
    """Gradients with respect to x, h0 and b, and all r ⊙ h of the step before."""
    B, H = h0.shape
    grad_h, h, saved, h0, W = (v.contiguous() for v in (grad_h, h, saved, h0, W))
    delta, grad_h0, reset = (torch.empty_like(v) for v in (saved, h0, h))
    # summed over the rows afterwards, in an order that does not vary
    partial_b = h0.new_empty(0 if b is None else (B, H))
    if B > 0:
        table, T = step_table(batch_sizes, h, B)
        layout, options = _backward(H, h.device.index), _options(b, table)
        arguments = (grad_h, h, saved, h0, W, delta, grad_h0, partial_b, reset)
        launch("gru_backward", layout, options, B, *arguments, table, T, B, int(reverse))
    return delta, grad_h0, partial_b if b is None else partial_b.sum(0), reset


def _forward(H: int, device: int) -> Layout | None:
    return best_layout(H, ((H, 2), (H, 1)), 2, 0, 48, chip(device).memory)


def _backward(H: int, device: int) -> Layout | None:
    return best_layout(H, ((H, 1), (2 * H, 1)), 5, 0, 64, chip(device).memory)


def _options(b: Tensor | None, table: Tensor | None) -> Options:
    phi, packed = "TANH" if b is None else "MODRELU", "false" if table is None else "true"
    return ("Activation PHI", phi), ("bool PACKED", packed)
