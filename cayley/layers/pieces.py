"""Long sequences piece by piece, where no gradient is recorded."""

from collections.abc import Callable

import torch
from torch import Tensor

from cayley.kernels.observation import is_observed
from cayley.tracing import is_eager

__all__ = ["in_pieces", "piece_steps"]

Tensors = tuple[Tensor, ...]

# How many numbers the states of a piece have, and its fewest steps. On a CPU the other arrays of a
# piece then stay in a cache, or in memory that is at hand, and LSTMs take less time, too: see
# benchmarks/inference.py. On a GPU pieces save memory alone, and take longer the smaller they are.
SIZES = {"cpu": (2**21, 8)}
OTHER_SIZES = (2**26, 64)


def piece_steps(x: Tensor, H: int) -> int | None:
    """How many steps to compute at a time; None for all of them.

    Recurrences write what a gradient needs beside the states, such as gates and cells: up to five
    times as much memory, and as much again for the product with the input. Without a gradient, that
    of a piece is enough. What is traced or observed is not divided.

    Arguments:
        x: The input, (T, B, I).
        H: The number of features of the state.

    Example:
        >>> x = torch.zeros(1, 1).expand(10_000, 64, 1)
        >>> piece_steps(x, 512), torch.no_grad()(piece_steps)(x, 512)
        (None, 64)
    """
    # before any size is looked at, which a tracer would take for a promise
    if torch.is_grad_enabled() or is_observed() or not is_eager(x) or x.is_meta:
        return None
    T, B, _ = x.shape
    numbers, fewest = SIZES.get(x.device.type, OTHER_SIZES)
    steps = max(fewest, numbers // max(1, B * H))
    return steps if steps < T else None


def in_pieces(
    run: Callable[[Tensor, Tensors | None], tuple[Tensor, Tensors]],
    x: Tensor,
    state: Tensors | None,
    steps: int,
    reverse: bool,
) -> tuple[Tensor, Tensors]:
    """The output of a recurrence, of which so many steps are computed at a time.

    Arguments:
        run: From some steps of x, and the state before them, to their output and the state after.
        x: The input, (T, B, I).
        state: The state before the first step; None for the recurrence's own.
        steps: The number of steps of a piece.
        reverse: Whether time runs from the last step to the first.

    Returns:
        The output of all steps, (T, B, ·), and the last state.

    Example:
        >>> def run(x, state):
        ...     y = x.cumsum(0) if state is None else x.cumsum(0) + state[0]
        ...     return y, (y[-1],)
        >>> y, _ = in_pieces(run, torch.ones(5, 1, 1), None, 2, reverse=False)
        >>> y.flatten()
        tensor([1., 2., 3., 4., 5.])
    """
    pieces = [slice(start, start + steps) for start in range(0, x.shape[0], steps)]
    first, *others = reversed(pieces) if reverse else pieces
    own, last = run(x[first], state)
    y = own.new_empty(x.shape[0], *own.shape[1:])
    y[first] = own
    for piece in others:
        y[piece], last = run(x[piece], last)
    return y, last
