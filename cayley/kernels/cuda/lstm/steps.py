"""The LSTM recurrence step by step, by a product of a library and one small kernel for each step.

See :mod:`cayley.kernels.cuda.runtime.stepwise` for when this is the faster plan. Results are those
of the other kernels, to rounding, and in the same layout.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cayley.kernels.cuda.runtime.nvrtc import Kernel, on
from cayley.kernels.cuda.runtime.parts import Part, parts
from cayley.kernels.cuda.runtime.step_kernels import step_views

__all__ = ["lstm_steps", "lstm_steps_backward"]


def lstm_steps(
    kernel: Kernel, h0: Tensor, arrays: Sequence[Any], batch_sizes: Tensor | None, *rest: Any
) -> None:
    """Write states, cells, gates and statistics of all steps.

    Arguments:
        kernel: ``src/lstm_step_forward.cu``.
        h0: The states before the first step, (B, H), with B > 0.
        arrays: The arrays of ``src/lstm_forward.cu``.
        batch_sizes: The sizes of packed sequences, (T), on the CPU.
        *rest: The table of the steps, T, B and K.
    """
    x, _, c0, W, *sites, h, c, kept, of_h, of_c = arrays
    B, H = h0.shape
    hs, products = (step_views(v, batch_sizes, B, F) for v, F in ((h, H), (kept, 4 * H)))
    Wt = W.mT
    with on(h0.device.index):
        step = kernel.repeated(x, c0, *sites, h, c, kept, of_h, of_c, *rest)
        before = h0
        for t, product in enumerate(products):
            n = len(product)
            if len(before) != n:
                before = before[:n]  # sequences that have ended are the last ones
            torch.mm(before, Wt, out=product)
            step(n, t)
            before = hs[t]


def lstm_steps_backward(
    kernel: Kernel,
    h0: Tensor,
    arrays: Sequence[Any],
    batch_sizes: Tensor | None,
    table: Tensor | None,
    T: int,
    B: int,
    *rest: int,
    normalised: bool,
) -> None:
    """Write what ``src/lstm_backward.cu`` writes.

    Arguments:
        kernel: ``src/lstm_step_backward.cu``.
        h0: The states before the first step, (B, H), with B > 0.
        arrays: The arrays of ``src/lstm_backward.cu``.
        batch_sizes: The sizes of packed sequences, (T), on the CPU.
        table: The table of the steps.
        T: Their number.
        B: The number of sequences.
        *rest: K, and the numbers of a row of `partial`.
        normalised: Whether W h is, so that its gradient is not that of the gates' arguments.
    """
    x, grad_h, grad_c, external_h, external_c, c, kept, of_x, of_h, of_c, c0, W, *others = arrays
    *sites, d, da, grad_h0, grad_c0, partial, past_h, past_c = others
    H = h0.shape[-1]
    shares: list[Part] = parts(h0, 2 * T * B, 2 * T * B)
    # all but W
    given = (x, grad_h, grad_c, external_h, external_c, c, kept, of_x, of_h, of_c, c0)
    made = (d, da, grad_h0, grad_c0, partial, past_h, past_c, *shares)
    deltas = step_views(da if normalised else d, batch_sizes, B, 4 * H)
    carry = grad_h0.view(B, H)
    with on(h0.device.index):
        step = kernel.repeated(*given, *sites, *made, table, T, B, *rest)
        for t in reversed(range(T)):
            n = len(deltas[t])
            step(n, t)
            torch.mm(deltas[t], W, out=carry if n == B else carry[:n])
