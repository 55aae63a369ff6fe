"""How the weights of a gated recurrence are laid out over teams of several blocks."""

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cayley.recurrences.cuda.gates import Options, option_lines
from cayley.recurrences.cuda.nvrtc import Kernel, constants, on
from cayley.recurrences.cuda.parts import Part
from cayley.recurrences.cuda.plans import RESERVED, Chip, chip

__all__ = ["Kind", "Team", "best_team", "run_teams"]

LANES = 32  # of a warp: the units that a block can have
BATCH = 16  # numbers that a thread waits for at a time


class Kind(NamedTuple):
    """What a team has to compute at every step.

    Attributes:
        inputs: Of each product, those that a unit contributes.
        outputs: Of each product, those for a unit.
        sums: How often the blocks of a team also add up numbers of their own.
        extra: Floats of shared memory for anything else, for each row.
        spare: Registers that are left for it.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    sums: int
    extra: int
    spare: int


class Share(NamedTuple):
    """How the threads of a block share a product, as ``src/product.cuh`` describes it.

    Attributes:
        outputs: That a group of lanes computes.
        splits: The lanes of a group.
        vector: The inputs that a lane reads at a time.
        slices: The parts of the inputs, each with groups of its own.
        chunks: How often a lane reads inputs.
        shared: How often its weights are in shared memory, not in its registers.
    """

    outputs: int
    splits: int
    vector: int
    slices: int
    chunks: int
    shared: int

    @property
    def weights(self) -> int:
        """Those of a lane that belong to a chunk."""
        return self.outputs * self.vector


@dataclass(frozen=True)
class Team:
    """Products of a recurrence of H units, as ``src/team.cuh`` describes.

    Attributes:
        H: The number of units.
        kind: What there is to compute.
        blocks: Of a team.
        rows: Of the batch, computed together.
        threads: Of a block.
        outputs: That a group of lanes computes.
    """

    H: int
    kind: Kind
    blocks: int
    rows: int
    threads: int
    outputs: int

    @property
    def units(self) -> int:
        """Of a block."""
        return -(-self.H // self.blocks)

    @functools.cached_property
    def shares(self) -> tuple[Share, ...]:
        """Of each product that which takes least time, with registers for the first ones first.

        None of a product for which there are too few threads.
        """
        # a quarter of a multiprocessor has 512 registers a lane, of which a thread can use 255
        registers = min(255, 512 // -(-self.threads // 128) // 8 * 8)
        room = registers - self.kind.spare - self.rows * self.outputs
        shares = []
        for inputs, outputs in zip(self.kind.inputs, self.kind.outputs, strict=True):
            choices = list(self._shares(inputs * self.H, outputs * self.units, room))
            if choices:
                share = min(choices, key=self._cycles)
                room -= (share.chunks - share.shared) * share.weights
                shares.append(share)
        return tuple(shares)

    def _shares(self, inputs: int, outputs: int, room: int) -> Iterator[Share]:
        groups = -(-outputs // self.outputs)
        for splits, vector in itertools.product((4, 8, 16, 32), (4, 2, 1)):
            slices = min(self.threads // (groups * splits), -(-inputs // (splits * vector)))
            if slices > 0:
                chunks = -(-inputs // (slices * splits * vector))
                kept = min(chunks, max(0, room) // (self.outputs * vector))
                yield Share(self.outputs, splits, vector, slices, chunks, chunks - kept)

    def _cycles(self, share: Share) -> float:
        """About how many a product takes; reading the inputs does more than multiplying them."""
        warps = self.threads // 32
        reads = self.rows * share.chunks
        issued = -(-warps // 4) * (reads * (1 + share.weights) + share.shared * share.outputs)
        read = warps * (0.7 * reads * share.vector + 1.6 * share.shared * share.weights)
        exchanged = 1.5 * warps * self.rows * share.outputs
        return 0.25 * issued + read + exchanged + 12 * share.slices

    def _waiting(self, inputs: int) -> float:
        """About how many cycles pass until a block has that many numbers of every unit."""
        turns = -(-inputs * self.H // self.threads)
        at_once = max(1, min(BATCH // self.rows, turns))
        return 1600 * -(-turns // at_once) + 90 * turns * self.rows

    @property
    def memory(self) -> int:
        """Bytes of shared memory."""
        floats, sums = self.rows * self.kind.extra, 0
        for share, outputs in zip(self.shares, self.kind.outputs, strict=True):
            width = share.chunks * share.splits * share.vector
            floats += share.slices * -(-self.rows * width // 4) * 4
            floats += share.shared * share.weights * self.threads
            sums = max(sums, share.slices * self.rows * outputs * self.units)
        return 4 * (floats + sums)

    @property
    def words(self) -> int:
        """Numbers that a team has room for in global memory, to be exchanged."""
        return 2 * self.rows * max(self.kind.inputs) * self.H

    def teams(self, B: int, chip: Chip) -> int:
        """How many of them compute B rows."""
        return min(chip.processors // self.blocks, -(-B // self.rows))

    def cost(self, B: int, chip: Chip) -> float:
        """About how many cycles a step of B rows takes: fitted to 460 timings on an H200."""
        step = sum(map(self._cycles, self.shares)) + 1600 * self.kind.sums
        step += sum(map(self._waiting, self.kind.inputs))
        return -(-B // (self.rows * self.teams(B, chip))) * step

    def sizes(self, options: Options) -> str:
        """The header ``sizes.cuh``."""
        tables = "".join(
            f"constexpr int {name.upper()}[] = "
            f"{{{', '.join(str(getattr(share, name)) for share in self.shares)}}};\n"
            for name in ("outputs", "splits", "vector", "slices", "shared")
        )
        numbers = {name.upper(): getattr(self, name) for name in ("blocks", "rows", "threads")}
        return constants(H=self.H, UNITS=self.units, **numbers) + tables + option_lines(options)


@functools.cache
def best_team(H: int, B: int, kind: Kind, chip: Chip) -> Team | None:
    """The layout of least cost for B rows, None where the weights do not fit on the chip.

    Example:
        >>> team = best_team(512, 50, Kind((1,), (4,), 0, 0, 64), Chip(132, 232448, 16))
        >>> team.blocks * team.units >= 512, team.teams(50, Chip(132, 232448, 16)) * team.rows >= 50
        (True, True)
    """
    return min(_teams(H, B, kind, chip), key=lambda team: team.cost(B, chip), default=None)


def _teams(H: int, B: int, kind: Kind, chip: Chip) -> Iterator[Team]:
    """All layouts that fit."""
    for blocks in range(-(-H // LANES), min(H, chip.processors) + 1):
        if -(-H // -(-H // blocks)) < blocks:
            continue  # some block would have nothing to do
        needed = -(-B // (chip.processors // blocks))
        for rows, threads, outputs in itertools.product(
            (1, 2, 4, 8, 16), (128, 256, 384, 512), (4, 8)
        ):
            if threads < LANES * rows or rows // 2 >= needed:
                continue
            team = Team(H, kind, blocks, rows, threads, outputs)
            if len(team.shares) == len(kind.outputs) and team.memory <= chip.memory - RESERVED:
                yield team


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
    team = best_team(H, B, kind, chip(device))
    if team is None:
        raise NotImplementedError(f"expected a size that refusal() lets pass, for {source}")
    teams = team.teams(B, chip(device))
    words = h0.new_zeros(teams * team.words, dtype=torch.int64)
    _kernel(device, source, team, options)(teams, *arrays, words, table, *numbers, teams)


@functools.cache
def _kernel(device: int, source: str, team: Team, options: Options) -> Kernel:
    with on(device):
        sizes = team.sizes(options)
        return Kernel(source, sizes, team.threads, team.blocks, team.memory, together=True)
