"""Long sequences piece by piece, where no gradient is recorded."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cayley.kernels.observation import is_observed
from cayley.tracing import is_eager

__all__ = ["in_pieces", "piece_steps", "states_of"]

# How many numbers the states of a piece have, and its fewest steps. On a CPU the other arrays of a
# piece then stay in a cache, or in memory that is at hand: an LSTM of 256 units and 500 sequences
# takes two thirds of the time. A GPU would wait for many launches; there memory alone counts.
SIZES = {"cpu": (2**21, 8)}
OTHER_SIZES = (2**24, 64)


def states_of(operator: Callable[[Any], Any], call: Any) -> Tensor:
    """The states h of a call with a single state, piece by piece where no gradient is recorded.

    Arguments:
        operator: The operator of a recurrence, or the like.
        call: Its arguments, a named tuple of :mod:`cayley.kernels.calls`.
    """
    if (steps := piece_steps(call.x, call.h0, call.batch_sizes)) is None:
        return operator(call).h

    def run(x: Tensor, h0: Tensor) -> list[Tensor]:
        return [operator(call._replace(x=x, h0=h0)).h]

    return in_pieces(run, call.x, [call.h0], steps, call.reverse)[0]


def piece_steps(x: Tensor, h0: Tensor, batch_sizes: Tensor | None) -> int | None:
    """How many steps to compute at a time; None for all of them.

    Kernels write what a gradient needs beside the states, such as gates: up to five times as much
    memory, and as much again for the product with the input. Without a gradient, that of a piece is
    enough. Packed sequences, and what is traced or observed, are not divided.

    Arguments:
        x: The input, (T, B, ·) or packed.
        h0: The state before the first step, (B, H).
        batch_sizes: Those of packed sequences.

    Example:
        >>> x, h0 = torch.zeros(1, 1).expand(10_000, 64, 1), torch.zeros(64, 512)
        >>> piece_steps(x, h0, None), torch.no_grad()(piece_steps)(x, h0, None)
        (None, 64)
    """
    if torch.is_grad_enabled() or batch_sizes is not None or is_observed():
        return None
    # before any size is looked at, which a tracer would take for a promise
    if not is_eager(x, h0) or x.is_meta or h0.numel() == 0:
        return None
    numbers, fewest = SIZES.get(x.device.type, OTHER_SIZES)
    steps = max(fewest, numbers // h0.numel())
    return steps if steps < x.shape[0] else None


def in_pieces(
    run: Callable[..., Sequence[Tensor]],
    x: Tensor,
    state: Sequence[Tensor],
    steps: int,
    reverse: bool = False,
) -> list[Tensor]:
    """The results of a recurrence, of which so many steps are computed at a time.

    Arguments:
        run: From some steps of x and the state before them to the states of these steps.
        x: The input, (T, B, ·).
        state: The state before the first step, a tensor (B, ·) for each result.
        steps: The number of steps of a piece.
        reverse: Whether time runs from the last step to the first.

    Returns:
        The states of all steps, (T, B, ·) each.

    Example:
        >>> in_pieces(lambda x, h: [x.cumsum(0) + h], torch.ones(5, 1), [torch.zeros(1)], 2)
        [tensor([[1.],
                [2.],
                [3.],
                [4.],
                [5.]])]
    """
    starts, results = range(0, x.shape[0], steps), list[Tensor]()
    for start in reversed(starts) if reverse else starts:
        piece = slice(start, start + steps)
        found = run(x[piece], *state)
        results = results or [own.new_empty(x.shape[0], *own.shape[1:]) for own in found]
        for whole, own in zip(results, found, strict=True):
            whole[piece] = own
        state = [own[0 if reverse else -1] for own in found]
    return results
