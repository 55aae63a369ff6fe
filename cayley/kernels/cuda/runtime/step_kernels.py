"""Kernels for what lies between two products of a step, and the rows of each step."""

import functools
from typing import NamedTuple

from torch import Tensor

from cayley.kernels.cuda.runtime.blocks import Options, option_lines
from cayley.kernels.cuda.runtime.nvrtc import Kernel, constants, on
from cayley.kernels.cuda.runtime.parts import Part

__all__ = ["RowLayout", "row_layout", "step_kernel", "step_views"]

MOST_THREADS = 512  # of a block
PARTS = 8  # the most blocks of a row
UNITS = 128  # the fewest units of each, if there are several


class RowLayout(NamedTuple):
    """How a row of the batch is laid out over threads, as ``src/step.cuh`` describes.

    Attributes:
        parts: The number of blocks of a row.
        each: The number of units of a thread.
        threads: The number of threads of a block.
    """

    parts: int
    each: int
    threads: int


def row_layout(H: int, joined: bool) -> RowLayout:
    """The layout of H units.

    Arguments:
        H: The number of units.
        joined: Whether sums over a row are needed, so that one block has all of it.

    Example:
        >>> row_layout(1030, joined=True)
        RowLayout(parts=1, each=3, threads=352)
        >>> row_layout(1030, joined=False)
        RowLayout(parts=8, each=1, threads=160)
    """
    parts = 1 if joined else min(PARTS, -(-H // UNITS))
    each = -(-H // (parts * MOST_THREADS))
    return RowLayout(parts, each, -(-H // (32 * parts * each)) * 32)


@functools.cache
def step_kernel(device: int, source: str, H: int, layout: RowLayout, options: Options) -> Kernel:
    """The kernel of a layout, on a device; a cluster of it is a row."""
    parts, each, threads = layout
    sizes = constants(H=H, PARTS=parts, EACH=each, THREADS=threads) + option_lines(options)
    with on(device):
        return Kernel(source, sizes, threads, parts, 0)


def step_views(
    array: Tensor | Part,
    batch_sizes: Tensor | None,
    B: int,
    F: int,
    columns: slice = slice(None),
) -> list[Tensor]:
    """Each step of an array of rows, as (rows, F), or of some columns of it.

    Arguments:
        array: The steps, (T, B, F), or packed, (N, F).
        batch_sizes: How many sequences have a step t, (T), on the CPU; None for all.
        B: The number of sequences.
        F: The number of features.
        columns: Which of them.

    Example:
        >>> import torch
        >>> [len(step) for step in step_views(torch.zeros(3, 2), torch.tensor([2, 1]), 2, 2)]
        [2, 1]
    """
    if batch_sizes is None:
        return list(array.view(-1, B, F)[..., columns].unbind())
    return list(array.view(-1, F)[:, columns].split(batch_sizes.tolist()))
