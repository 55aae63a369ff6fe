"""One step of the Elman recurrence as one CUDA kernel, for streams.

A step is so small that the host takes longer to launch it than the device to compute it. Torch
needs seven launches for one with modReLU, and eight with the copy of the state.
"""

import functools

import torch
from torch import Tensor

from cayley.activations import ACTIVATIONS as KNOWN
from cayley.kernels.cuda.elman import ACTIVATIONS
from cayley.kernels.cuda.runtime.nvrtc import Kernel, constants, on, tensor_refusal
from cayley.kernels.memory import readable

__all__ = ["elman_step", "most_rows", "step_refusal"]

THREADS = 256
UNITS = 32  # of a block, as in src/elman_step.cu
# From about here on the products take longer than their launches, and a library computes them best.
MOST_PRODUCTS = 2**22


def step_refusal(nonlinearity: str, U: Tensor, Wt: Tensor, b: Tensor) -> str | None:
    """Why the kernel cannot make steps with these weights; None if it can."""
    if nonlinearity not in ACTIVATIONS:
        return f"the CUDA kernels have no {nonlinearity}"
    if not (U.is_cuda and U.is_contiguous() and Wt.is_contiguous() and b.is_contiguous()):
        return "the kernel reads contiguous weights on a GPU"
    return tensor_refusal(U, Wt, b)


def most_rows(I: int, H: int) -> int:  # noqa: E741
    """The number of rows up to which the kernel is taken.

    Example:
        >>> most_rows(3, 170), most_rows(3, 512)
        (142, 15)
    """
    return MOST_PRODUCTS // (H * (H + I))


def elman_step(
    nonlinearity: str, x: Tensor, state: Tensor, U: Tensor, Wt: Tensor, b: Tensor
) -> tuple[Tensor, Tensor]:
    r"""The output and the state after a step :math:`\phi(U x + W h; b)`.

    Arguments:
        nonlinearity: A key of :data:`cayley.activations.ACTIVATIONS`.
        x: The input, (B, I).
        state: h, (B, H), or (1, B, H) for a state that shares no memory with the output.
        U: The input matrix, (H, I).
        Wt: The recurrent matrix, transposed, (H, H).
        b: The threshold of modReLU, (H) or (H/2), or a bias of other activations, (H).

    Returns:
        The output, (B, H), and the state, shaped as ``state``.
    """
    (B, I), H = x.shape, len(Wt)  # noqa: E741
    x, state = readable(x), readable(state)
    output = state.new_empty(B, H)
    after = output if state.dim() == 2 else torch.empty_like(state)
    tiles = -(-(H // 2 if KNOWN[nonlinearity].stacked else H) // UNITS)
    launch = _kernel(x.get_device(), nonlinearity)
    launch(B * tiles, x, state, U, Wt, b, output, after, I, H, tiles)
    return output, after


@functools.cache
def _kernel(device: int, nonlinearity: str) -> Kernel:
    sizes = constants(THREADS=THREADS) + f"constexpr Activation PHI = {nonlinearity.upper()};\n"
    with on(device):
        return Kernel("elman_step", sizes, THREADS, 1, 0)
