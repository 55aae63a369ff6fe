"""The Elman recurrence and its gradient as one CUDA kernel each.

See :mod:`cayley.recurrences.elman`. A kernel runs all steps. The weights stay in registers, and
in shared memory where those do not suffice: of one block where they fit, of a cluster of blocks
otherwise, which send each other their new states. Sizes are constants of the compiled code. Packed
sequences are read as they are.
"""

import functools

import torch
from torch import Tensor

from cayley.activations import ACTIVATIONS
from cayley.recurrences.cuda.nvrtc import Kernel, on, refused
from cayley.recurrences.cuda.packed import step_table
from cayley.recurrences.cuda.plans import Plan, best_plan, chip

__all__ = ["elman", "elman_backward", "refusal"]


def refusal(
    nonlinearity: str,
    x: Tensor,
    *others: Tensor | None,
    batch_sizes: Tensor | None = None,
    grad_z: Tensor | None = None,
) -> str | None:
    """Why the kernels cannot serve a call; None if they can.

    Arguments:
        nonlinearity: A key of :data:`cayley.activations.ACTIVATIONS`.
        x: h, (T, B, H) or (N, H), or h0, (B, H).
        others: All other tensors of the call.
        batch_sizes: Of a packed sequence.
        grad_z: The gradient of z.
    """
    if grad_z is not None:
        return "the CUDA kernels give first derivatives only"
    if reason := refused(x, *others):
        return reason
    *_, B, H = x.shape
    if batch_sizes is not None:
        B = int(batch_sizes[0])
    if B * H >= 2**31:
        return f"the CUDA kernels take less than 2^31 numbers a step, not {B} × {H}"
    plan = best_plan(H, max(B, 1), chip(x.device.index))
    name = torch.cuda.get_device_name(x.device)
    if plan is None:
        return f"{H} × {H} weights do not fit on the chip of {name}"
    packed = batch_sizes is not None
    if plan.blocks > 1 and _clusters(x.device.index, plan, nonlinearity, packed) == 0:
        return f"{name} runs no cluster of {plan.blocks} blocks"
    return None


def elman(
    x: Tensor,
    h0: Tensor,
    W: Tensor,
    b: Tensor | None,
    batch_sizes: Tensor | None,
    reverse: bool,
    nonlinearity: str,
) -> tuple[Tensor, Tensor]:
    """All h, and all z where the activation's derivative needs them (else an empty tensor)."""
    x, h0, W = x.contiguous(), h0.contiguous(), W.contiguous()
    h = torch.empty_like(x)
    z = torch.empty_like(x) if ACTIVATIONS[nonlinearity].saves_z else x.new_empty(0)
    b = z if b is None else b.contiguous()
    if len(h0) > 0:
        arguments = (x, h0, W, b, h, z)
        _launch("elman_forward", 1, nonlinearity, h0, batch_sizes, reverse, *arguments)
    return h, z


def elman_backward(
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
    """Gradients with respect to x, h0 and b."""
    saved = z if ACTIVATIONS[nonlinearity].saves_z else h
    grad_h, saved, W = grad_h.contiguous(), saved.contiguous(), W.contiguous()
    delta, grad_h0 = torch.empty_like(saved), h0.new_empty(h0.shape)
    # summed over the rows afterwards, in an order that does not vary
    partial_b = h.new_empty(0 if b is None else (len(h0), len(b)))
    bias = partial_b if b is None else b.contiguous()
    if len(h0) > 0:
        arguments = (grad_h, saved, W, bias, delta, grad_h0, partial_b)
        _launch("elman_backward", 2, nonlinearity, h0, batch_sizes, reverse, *arguments)
    return delta, grad_h0, partial_b if b is None else partial_b.sum(0)


def _launch(
    source: str,
    streams: int,
    nonlinearity: str,
    h0: Tensor,
    batch_sizes: Tensor | None,
    reverse: bool,
    x: Tensor,
    *rest: Tensor,
) -> None:
    device, (B, H) = x.device.index, h0.shape
    plan = best_plan(H, B, chip(device))
    if plan is None:
        raise NotImplementedError(f"expected a size that refusal() lets pass, got H = {H}")
    launch = _kernel(device, source, plan, streams, nonlinearity, batch_sizes is not None)
    table, T = step_table(batch_sizes, x, B)
    launch(plan.clusters(B), x, *rest, table, T, B, int(reverse))


@functools.cache
def _clusters(device: int, plan: Plan, nonlinearity: str, packed: bool) -> int:
    """How many clusters run at a time: none where a part of a GPU has too few multiprocessors."""
    with on(device):
        return _kernel(device, "elman_forward", plan, 1, nonlinearity, packed).resident_clusters()


@functools.cache
def _kernel(
    device: int, source: str, plan: Plan, streams: int, nonlinearity: str, packed: bool
) -> Kernel:
    sizes, memory = plan.sizes(nonlinearity, packed), plan.memory(streams)
    with on(device):
        return Kernel(source, sizes, plan.threads, plan.blocks, memory)
