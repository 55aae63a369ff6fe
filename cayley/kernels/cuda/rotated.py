"""The recurrence by layers of rotations and its gradient as one CUDA kernel each.

See :mod:`cayley.recurrences.rotated`. A kernel runs all steps. A block computes one sequence, with
O(n) operations for a layer: the units exchange their values in shared memory. The layers are
constants of the compiled code. Packed sequences are read as they are.
"""

import functools
from collections.abc import Collection, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from cayley.kernels.calls import ElmanGradients, ElmanStates, RotatedCall
from cayley.kernels.cuda.runtime.blocks import option_lines
from cayley.kernels.cuda.runtime.chip import RESERVED, chip, no_room
from cayley.kernels.cuda.runtime.nvrtc import Kernel, constants, on, tensor_refusal
from cayley.kernels.cuda.runtime.packed import step_table
from cayley.kernels.cuda.runtime.projection import project_on_cuda
from cayley.kernels.memory import readable
from cayley.kernels.projection import projection_gradients
from cayley.kernels.rotations import find_pattern

__all__ = ["refusal", "rotated", "rotated_backward", "size_refusal"]

MOST_THREADS = 512  # more leave each too few registers
SHARE = 128  # threads for which registers are given out: a warp in each quarter of the processor
MOST_SUMS = 32  # of a thread, for angles: more need too many registers
# bytes that a unit exchanges: itself, and its gradient
EXCHANGED = {"forward": 8, "backward": 16}


def refusal(call: RotatedCall, gradients: ElmanGradients | None = None) -> str | None:
    """Why the kernels cannot compute a call, or its gradient; None if they can."""
    if gradients is not None and gradients.z is not None:
        return "the CUDA kernels give first derivatives only"
    tensors = (call.x, call.theta, call.phi, call.omega, call.b, call.U)
    if reason := tensor_refusal(call.h0, *tensors, call.c, *(gradients or ())):
        return reason
    return size_refusal(call.omega.shape[-1], call.layers, call.h0.device)


@functools.cache
def size_refusal(n: int, layers: int, device: torch.device) -> str | None:
    """Why the kernels cannot turn n units by so many layers; None if they can."""
    if n == 0:
        return "the CUDA kernels need a unit at least"
    count = len(find_pattern(n, layers))
    if count * -(-n // _threads(n)) > MOST_SUMS:
        return f"the CUDA kernels do not turn {n} units by as many layers as {count}"
    if _memory(n, count, "backward") > chip(device.index).memory - RESERVED:
        return no_room(f"{count} layers of {n} complex units", device)
    return None


def rotated(call: RotatedCall, out: ElmanStates | None = None) -> ElmanStates:
    """The states of a call, in ``out`` if it is given."""
    x, h0 = readable(project_on_cuda(call.x, call.U, call.c)), readable(call.h0)
    h, z = ElmanStates(torch.empty_like(x), torch.empty_like(x)) if out is None else out
    if len(h0) > 0:
        _launch("forward", call, (x, h0), (h, z))
    return ElmanStates(h, z)


def rotated_backward(
    gradients: ElmanGradients, states: ElmanStates, call: RotatedCall, needed: Collection[str]
) -> dict[str, Tensor | None]:
    """Gradients of a call; of x, U and c those that are needed."""
    grad_h, z, h0 = map(readable, (gradients.h, states.z, call.h0))
    (B, _), n = h0.shape, call.omega.shape[-1]
    pattern = find_pattern(n, call.layers)
    delta, grad_h0 = torch.empty_like(z), torch.empty_like(h0)
    # summed over the rows afterwards, always in the same order
    angles, phases, partial_b = (
        h0.new_empty(B, *size) for size in ((len(pattern), n), (len(pattern) + 1, n), (n,))
    )
    if B > 0:
        _launch("backward", call, (grad_h, z, h0), (delta, grad_h0, angles, phases, partial_b))
    angles, phases = angles.sum(0), phases.sum(0)
    grad_theta, grad_phi = [h0.new_empty(0)], [h0.new_empty(0)]
    for (offset, blocks, stride), of_angles, of_phases in zip(
        pattern, angles, phases, strict=False
    ):
        turned = slice(offset, offset + 2 * blocks * stride)
        first, second = of_angles[turned].view(blocks, 2, stride).unbind(1)
        # to turn further moves the first of a pair along −, the second along + its partner
        grad_theta.append((second - first).flatten())
        grad_phi.append(of_phases[turned].view(blocks, 2, stride)[:, 0].flatten())
    return {
        "h0": grad_h0,
        "theta": torch.cat(grad_theta),
        "phi": torch.cat(grad_phi),
        "omega": phases[-1],
        "b": partial_b.sum(0),
        **projection_gradients(delta, call.x, call.U, needed),
    }


def _launch(
    direction: str, call: RotatedCall, given: Sequence[Tensor], made: Sequence[Tensor]
) -> None:
    """Launch the kernel of a direction.

    Arguments:
        direction: Which of the kernels.
        call: The call.
        given: What the kernel reads, of all steps first, beside the angles and the thresholds.
        made: What it writes.
    """
    B, n = len(call.h0), call.omega.shape[-1]
    table, T = step_table(call.batch_sizes, given[0], B)
    launch = _kernel(call.h0.device.index, direction, n, call.layers, call.batch_sizes is not None)
    angles = map(readable, (call.theta, call.phi, call.omega, call.b))
    launch(B, *given, *angles, *made, table, T, B, int(call.reverse))


@functools.cache
def _kernel(device: int, direction: str, n: int, layers: int, packed: bool) -> Kernel:
    memory = _memory(n, len(find_pattern(n, layers)), direction)
    with on(device):
        return Kernel(
            f"rotated_{direction}", _sizes(n, layers, packed, memory), _threads(n), 1, memory
        )


def _threads(n: int) -> int:
    """The threads of a block for n units.

    Example:
        >>> _threads(116), _threads(2048)
        (128, 512)
    """
    return min(MOST_THREADS, -(-n // SHARE) * SHARE)


def _memory(n: int, layers: int, direction: str) -> int:
    """Bytes of shared memory: the turns of all layers, and two buffers."""
    return 16 * n * layers + 2 * EXCHANGED[direction] * n


def _sizes(n: int, layers: int, packed: bool, memory: int) -> str:
    """The header ``sizes.cuh``."""
    pattern = find_pattern(n, layers)
    tables = {
        "OFFSETS": [layer.offset for layer in pattern],
        "ENDS": [layer.offset + 2 * layer.rotations for layer in pattern],
        "STRIDES": [layer.stride for layer in pattern],
        "FIRSTS": [0, *accumulate(layer.rotations for layer in pattern)][:-1],
    }
    # without layers there is still a number in each
    lines = [
        f"constexpr int {name}[] = {{{', '.join(map(str, values or [0]))}}};\n"
        for name, values in tables.items()
    ]
    numbers = constants(N=n, LAYERS=len(pattern), THREADS=_threads(n), MEMORY=memory)
    flags = option_lines((("bool PACKED", str(packed).lower()),))
    return "".join((numbers, *lines, flags))
