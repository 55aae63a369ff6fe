"""The references that a normalised LSTM subtracts from its means, in one kernel."""

import functools

from torch import Tensor

from cayley.kernels.calls import LstmCall
from cayley.kernels.cuda.runtime.blocks import option_lines
from cayley.kernels.cuda.runtime.nvrtc import Kernel, constants, on, tensor_refusal
from cayley.kernels.cuda.runtime.packed import step_table
from cayley.kernels.memory import readable

__all__ = ["references", "refusal"]

THREADS = 256


def refusal(call: LstmCall) -> str | None:
    """Why the kernel cannot compute the references of a call; None if it can."""
    return tensor_refusal(call.x, call.h0, call.b)


def references(
    x: Tensor, b: Tensor | None, B: int, batch_sizes: Tensor | None, *, of_input: bool = True
) -> tuple[Tensor, ...]:
    """The references of :mod:`cayley.recurrences.lstm`, (B, 1).

    Those of the input are near its value of least magnitude, those of the recurrent products near
    the mean of their bias, and those of the cells are 0.

    Arguments:
        x: The contribution of the input, (T, B, 4H), or (N, 4H) with ``batch_sizes``.
        b: The bias of the recurrent products, (4H); None for 0.
        B: The number of sequences.
        batch_sizes: The sizes of packed sequences, (T), on the CPU.
        of_input: Whether to compute the reference of x; otherwise it is 0.
    """
    result = x.new_empty(3, B, 1)
    if B > 0:
        table, T = step_table(batch_sizes, x, B)
        b = readable(b)
        given = (readable(x) if of_input else None, b, table, result)
        _kernel(x.device.index, table is not None)(B, *given, T, x.shape[-1] // 4, B)
    return result.unbind()


@functools.cache
def _kernel(device: int, packed: bool) -> Kernel:
    sizes = constants(THREADS=THREADS) + option_lines((("bool PACKED", str(packed).lower()),))
    with on(device):
        return Kernel("references", sizes, THREADS, 1, 0)
