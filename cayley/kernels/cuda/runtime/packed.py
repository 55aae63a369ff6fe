"""The table of the steps of packed sequences that kernels read."""

import torch
from torch import Tensor

from cayley.kernels.steps import check_batch_sizes
from cayley.tracing import captured

__all__ = ["step_table"]


def step_table(batch_sizes: Tensor | None, x: Tensor, B: int) -> tuple[Tensor | None, int]:
    """Where the steps of every sequence are, as ``src/steps.cuh`` reads it, and their number T.

    Arguments:
        batch_sizes: How many sequences have a step t, (T), on the CPU; None for dense sequences,
            which need no table.
        x: The steps, (T, B, ·), or packed, (N, ·).
        B: The number of sequences.

    Returns:
        On the device of x, the batch sizes, the row of x with which every step begins, and the
        number of steps of every sequence, (2T + B); and T.

    Example:
        Sequences of 3 and 2 steps: the three steps begin with rows 0, 2 and 4 of x.

        >>> step_table(torch.tensor([2, 2, 1]), torch.zeros(5, 8), 2)
        (tensor([2, 2, 1, 0, 2, 4, 3, 2]), 3)
    """
    if batch_sizes is None:
        return None, x.shape[0]
    if captured(x):
        raise RuntimeError(
            "packed sequences cannot be captured in a CUDA graph, since their batch sizes are on "
            "the CPU: capture dense sequences, padded to one length"
        )
    check_batch_sizes(batch_sizes, x.shape[0], B)
    T, sequence = batch_sizes.shape[0], torch.arange(B, device=batch_sizes.device)
    # sequence b reaches the steps that have more than b sequences
    lengths = T - torch.searchsorted(batch_sizes.flip(0), sequence, right=True)
    starts = batch_sizes.cumsum(0) - batch_sizes
    table = torch.cat((batch_sizes, starts, lengths))
    # a copy from memory that is not pinned is safe, and does not wait
    return table.to(x.device, non_blocking=True), T
