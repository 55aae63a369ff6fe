"""What the means of a normalised LSTM are measured from, in one kernel."""

import functools

from torch import Tensor

from cayley.kernels.calls import LstmCall
from cayley.kernels.cuda.runtime.nvrtc import Kernel, constants, on, tensor_refusal

__all__ = ["averaged", "references", "refusal"]

THREADS = 256
FEW = 128  # the units up to which a kernel reads a whole matrix


def refusal(call: LstmCall) -> str | None:
    """Why the kernel cannot find the references of a call; None if it can."""
    return tensor_refusal(call.x, call.h0, call.c0, call.W, call.b)


def averaged(W: Tensor | None, b: Tensor | None) -> tuple[Tensor | None, Tensor | None, int]:
    """W and b for the mean of W h + b, and their rows; of many units their means, one row.

    Example:
        >>> import torch
        >>> W, _, rows = averaged(torch.ones(4 * 200, 200), None)
        >>> W.shape, rows
        (torch.Size([200]), 1)
    """
    if W is None or W.shape[1] <= FEW:
        return W, b, 0 if W is None else W.shape[0]
    return W.mean(0), None if b is None else b.mean(), 1


def references(
    x: Tensor | None, h0: Tensor, c0: Tensor | None, W: Tensor | None, b: Tensor | None
) -> tuple[Tensor, ...]:
    """The references of :mod:`cayley.recurrences.lstm`: near the means at the first step, (B, 1).

    Those of the input, the recurrent product and the cell; 0 where x, W or c0 is missing.

    Arguments:
        x: What the input contributes, (T, B, 4H), or (N, 4H) with the first step's rows first.
        h0: The state before the first step, (B, H).
        c0: The cell before the first step, (B, H).
        W: The recurrent matrix, (4H, H).
        b: A bias beside it, (4H).
    """
    B, H = h0.shape
    if x is not None:
        x = x.reshape(-1, 4 * H)[:B].contiguous()
    c0, W, b = (None if v is None else v.contiguous() for v in (c0, W, b))
    W, b, rows = averaged(W, b)
    result = h0.new_empty(3, B, 1)
    if B > 0:
        _kernel(h0.device.index)(B, x, h0.contiguous(), c0, W, b, result, rows, H, B)
    return result.unbind()


@functools.cache
def _kernel(device: int) -> Kernel:
    with on(device):
        return Kernel("references", constants(THREADS=THREADS), THREADS, 1, 0)
