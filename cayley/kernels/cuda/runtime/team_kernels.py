"""Kernels that teams of several blocks run, for all rows of a batch."""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from cayley.kernels.cuda.runtime.blocks import Options
from cayley.kernels.cuda.runtime.chip import chip
from cayley.kernels.cuda.runtime.nvrtc import Kernel, on
from cayley.kernels.cuda.runtime.parts import Part
from cayley.kernels.cuda.runtime.teams import Kind, Team, best_team

__all__ = ["rounded", "run_teams"]


def run_teams(
    source: str,
    kind: Kind,
    options: Options,
    h0: Tensor,
    arrays: Sequence[Tensor | Part | None],
    table: Tensor | None,
    *numbers: int,
) -> None:
    """Launch a kernel for all rows of h0.

    Arguments:
        source: The name of the kernel.
        kind: What it computes.
        options: Further constants.
        h0: States, (B, H), with B > 0.
        arrays: Its first arguments; room for the numbers that are exchanged follows them.
        table: That of a packed sequence.
        *numbers: The last arguments; the number of teams follows them.
    """
    (B, H), device = h0.shape, h0.device.index
    team = best_team(H, rounded(B), kind, chip(device))
    if team is None:
        raise NotImplementedError(f"expected a size that refusal() accepts, for {source}")
    teams = team.teams(B, chip(device))
    words = h0.new_zeros(teams * team.words, dtype=torch.int64)
    _kernel(device, source, team, options)(teams, *arrays, words, table, *numbers, teams)


def rounded(B: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, ..., so that not every number of rows has its own kernels.

    Example:
        >>> [rounded(B) for B in (1, 3, 5, 20, 50, 128)]
        [1, 3, 6, 24, 64, 128]
    """
    power = 1 << (B - 1).bit_length()
    return power * 3 // 4 if power > 2 and power * 3 // 4 >= B else power


@functools.cache
def _kernel(device: int, source: str, team: Team, options: Options) -> Kernel:
    with on(device):
        sizes = team.sizes(options)
        return Kernel(source, sizes, team.threads, team.blocks, team.memory, together=True)
