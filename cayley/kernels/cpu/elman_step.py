"""One step of the Elman recurrence in C, for streams.

A step is so small that calling torch's operations takes longer than what they compute; there are
seven of them in one with modReLU, and eight with the copy of the state.
"""

import ctypes

import torch
from torch import Tensor

from cayley.activations import ACTIVATIONS as KNOWN
from cayley.kernels.cpu import native
from cayley.kernels.cpu.elman import ACTIVATIONS
from cayley.kernels.memory import readable

__all__ = ["elman_step", "most_rows", "step_refusal"]

# From about here on the products take longer than the calls, and a library computes them best. What
# a unit takes beside its products is that of so many more.
MOST_PRODUCTS, BESIDE = 170_000, 50


class _ElmanStep(ctypes.Structure):
    """``ElmanStep`` of arguments.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "h", "U", "c", "Wt", "b", "output", "state")),
        *((name, ctypes.c_int64) for name in ("B", "I", "H", "activation")),
    )


def step_refusal(nonlinearity: str, U: Tensor, Wt: Tensor, b: Tensor) -> str | None:
    """Why C cannot make steps with these weights; None if it can."""
    if nonlinearity not in ACTIVATIONS:
        return f"the CPU kernel has no {nonlinearity}"
    if not (U.is_cpu and U.is_contiguous() and Wt.is_contiguous() and b.is_contiguous()):
        return "C reads contiguous weights on a CPU"
    return native.refusal(U, Wt, b)


def most_rows(I: int, H: int) -> int:  # noqa: E741
    """The number of rows up to which C is faster than torch, on a Neoverse-N1.

    Example:
        >>> most_rows(3, 170), most_rows(3, 512)
        (4, 0)
    """
    return MOST_PRODUCTS // (H * (H + I + BESIDE))


def elman_step(
    nonlinearity: str, x: Tensor, state: Tensor, U: Tensor, Wt: Tensor, b: Tensor
) -> tuple[Tensor, Tensor]:
    r"""The output and the state after a step :math:`\phi(U x + W h; b)`.

    Arguments and results are those of :func:`cayley.kernels.cuda.elman_step.elman_step`.

    Example:
        >>> x, h, b = torch.ones(1, 1), torch.ones(1, 2), torch.zeros(2)
        >>> elman_step("identity", x, h, torch.ones(2, 1), torch.eye(2), b)[0]
        tensor([[2., 2.]])
    """
    x, state = readable(x), readable(state)
    (B, I), H = x.shape, len(Wt)  # noqa: E741
    output = state.new_empty(B, H)
    after = output if state.dim() == 2 else torch.empty_like(state)
    bias = b.data_ptr()
    c, threshold = (None, bias) if KNOWN[nonlinearity].threshold else (bias, None)
    arguments = _ElmanStep(
        x.data_ptr(),
        state.data_ptr(),
        U.data_ptr(),
        c,
        Wt.data_ptr(),
        threshold,
        output.data_ptr(),
        after.data_ptr(),
        B,
        I,
        H,
        ACTIVATIONS.index(nonlinearity),
    )
    native.run("cayley_elman_step", ctypes.byref(arguments), dtype=x.dtype)
    return output, after
