"""From the packed layout of steps, (N, ·), to tables over time and batch, (T, B, ·), and back."""

import torch
from torch import Tensor

__all__ = ["packed_table", "padded", "reversed_sequences", "step_mask"]


def step_mask(batch_sizes: Tensor, device: torch.device) -> Tensor:
    """Which sequences reach which step, (T, B).

    Example:
        >>> step_mask(torch.tensor([2, 1]), torch.device("cpu"))
        tensor([[ True,  True],
                [ True, False]])
    """
    # the first size is the largest, since sequences are sorted by length
    sequence = torch.arange(int(batch_sizes[0]), device=batch_sizes.device)
    return (sequence < batch_sizes[:, None]).to(device)


def padded(x: Tensor, rows: Tensor) -> Tensor:
    """Packed steps (N, ·) as (T, B, ·), with 0 where the mask ``rows`` is False.

    Example:
        >>> padded(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[True, True], [True, False]]))
        tensor([[[1.], [2.]],
                [[3.], [0.]]])
    """
    return x.new_zeros(*rows.shape, x.shape[-1]).index_put((rows,), x)


def packed_table(table: Tensor, batch_sizes: Tensor | None) -> Tensor:
    """A table (T, 1 or B, ·) in the layout of the steps, so that it broadcasts with them."""
    if batch_sizes is None:
        return table
    rows = step_mask(batch_sizes, table.device)
    return table.expand(-1, rows.shape[1], -1)[rows]


def reversed_sequences(x: Tensor, batch_sizes: Tensor | None) -> Tensor:
    """Every sequence from its last step to its first, in the layout of x.

    Example:
        >>> x = torch.tensor([1, 10, 2, 20, 3])[:, None]  # the sequences 1, 2, 3 and 10, 20
        >>> reversed_sequences(x, torch.tensor([2, 2, 1])).flatten()
        tensor([ 3, 20,  2, 10,  1])
    """
    if batch_sizes is None:
        return x.flip(0)
    rows = step_mask(batch_sizes, torch.device("cpu"))
    t, sequence = rows.nonzero(as_tuple=True)
    first_row = batch_sizes.cumsum(0) - batch_sizes
    index = first_row[rows.sum(0)[sequence] - 1 - t] + sequence
    return x[index.to(x.device)]
