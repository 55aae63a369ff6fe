"""The Elman recurrence and its gradient as one CUDA kernel each.

See :mod:`cayley.recurrences.elman`. A kernel runs all steps. The weights stay in registers, and
in shared memory where those do not suffice: of one block where they fit, of a cluster of blocks
otherwise, which send each other their new states, and where there are no clusters, or they do not
suffice, of a team of blocks. Sizes are constants of the compiled code. Packed sequences are read as
they are.
"""

import functools

import torch
from torch import Tensor

from cayley.activations import ACTIVATIONS
from cayley.kernels.cuda.runtime.chip import chip, no_room
from cayley.kernels.cuda.runtime.clusters import Plan, best_plan
from cayley.kernels.cuda.runtime.nvrtc import Kernel, on, tensor_refusal
from cayley.kernels.cuda.runtime.packed import step_table
from cayley.kernels.cuda.runtime.team_kernels import run_teams
from cayley.kernels.cuda.runtime.teams import GateProduct, Kind, best_team

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
    if reason := tensor_refusal(x, *others):
        return reason
    *_, B, H = x.shape
    if batch_sizes is not None:
        B = int(batch_sizes[0])
    if B * H >= 2**31:
        return f"the CUDA kernels take less than 2^31 numbers a step, not {B} × {H}"
    device, packed = x.device.index, batch_sizes is not None
    if _served_plan(device, H, max(B, 1), nonlinearity, packed) is not None:
        return None
    if best_team(H, 1, _kind(nonlinearity), chip(device)) is None:
        return no_room(f"{H} × {H} weights", x.device)
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
        _launch("forward", 1, nonlinearity, h0, batch_sizes, reverse, *arguments)
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
        _launch("backward", 2, nonlinearity, h0, batch_sizes, reverse, *arguments)
    return delta, grad_h0, partial_b if b is None else partial_b.sum(0)


def _launch(
    direction: str,
    streams: int,
    nonlinearity: str,
    h0: Tensor,
    batch_sizes: Tensor | None,
    reverse: bool,
    x: Tensor,
    *rest: Tensor,
) -> None:
    device, (B, H), packed = x.device.index, h0.shape, batch_sizes is not None
    table, T = step_table(batch_sizes, x, B)
    plan = _served_plan(device, H, B, nonlinearity, packed)
    if plan is None:
        options = ("Activation PHI", nonlinearity.upper()), ("bool PACKED", str(packed).lower())
        steps = (table, T, B, int(reverse))
        run_teams(f"elman_team_{direction}", _kind(nonlinearity), options, h0, (x, *rest), *steps)
    else:
        launch = _kernel(device, direction, plan, streams, nonlinearity, packed)
        launch(plan.clusters(B), x, *rest, table, T, B, int(reverse))


def _kind(nonlinearity: str) -> Kind:
    """What a team of blocks computes, in either direction."""
    together = 2 if nonlinearity == "modrelu_stacked" else 1
    return Kind((GateProduct(1, False),), totals=0, extra=0, spare=96, together=together)


def _served_plan(device: int, H: int, B: int, nonlinearity: str, packed: bool) -> Plan | None:
    """The plan for B rows, if there is one and the device runs clusters of that size."""
    plan = best_plan(H, B, chip(device))
    if plan is None or plan.blocks == 1:
        return plan
    return plan if _clusters(device, plan, nonlinearity, packed) > 0 else None


@functools.cache
def _clusters(device: int, plan: Plan, nonlinearity: str, packed: bool) -> int:
    """How many clusters run at a time: none where a part of a GPU has too few multiprocessors."""
    with on(device):
        return _kernel(device, "forward", plan, 1, nonlinearity, packed).resident_clusters()


@functools.cache
def _kernel(
    device: int, direction: str, plan: Plan, streams: int, nonlinearity: str, packed: bool
) -> Kernel:
    sizes, memory = plan.sizes(nonlinearity, packed), plan.memory(streams)
    with on(device):
        return Kernel(f"elman_{direction}", sizes, plan.threads, plan.blocks, memory)
