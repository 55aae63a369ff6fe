"""How the weights of a gated recurrence are laid out over the threads of one block."""

import functools
from dataclasses import dataclass
from typing import NamedTuple

from cayley.kernels.cuda.runtime.chip import RESERVED, registers
from cayley.kernels.cuda.runtime.nvrtc import Kernel, constants, on

__all__ = [
    "DEPTH",
    "BlockLayout",
    "Factor",
    "Options",
    "best_block_layout",
    "gate_kernel",
    "option_lines",
]

DEPTH = 4  # one more than the steps between reading an input and using it

Factor = tuple[int, int]  # of a product: its inputs, and its outputs for each unit
Options = tuple[tuple[str, str], ...]  # names and values of further constants


class Split(NamedTuple):
    """How a lane goes through its part of the inputs of a product.

    Attributes:
        vector: The states that it reads at a time.
        chunks: How often it does so.
        weights: Those that it multiplies with each time.
        shared: How often these are in shared memory, not in its registers.
    """

    vector: int
    chunks: int
    weights: int
    shared: int


@dataclass(frozen=True)
class BlockLayout:
    """Products of a recurrence of H units, as ``src/gates.cuh`` and ``src/product.cuh`` describe.

    Attributes:
        H: The number of units.
        factors: The products that a step consists of.
        streams: The numbers that a lane reads from global memory at every step.
        extra: Floats of shared memory for anything else.
        spare: Registers that are left for anything else.
        roles: The number of lanes of a unit.
        rows: The rows of the batch that a block computes.
    """

    H: int
    factors: tuple[Factor, ...]
    streams: int
    extra: int
    spare: int
    roles: int = 4
    rows: int = 1

    @property
    def lanes(self) -> int:
        """Lanes of a group; each sums over a part of the inputs, for all outputs of the group."""
        return min(16, 32 // max(outputs for _, outputs in self.factors))

    @property
    def units(self) -> int:
        """Units of a group."""
        return self.lanes // self.roles

    @property
    def threads(self) -> int:
        """Threads of a block, in whole warps."""
        threads = -(-self.H // self.units) * self.lanes
        return -(-threads // 32) * 32

    @property
    def splits(self) -> list[Split]:
        """The fastest split of each product; the first products get registers first."""
        room = registers(self.threads) - self.spare
        splits = []
        for inputs, outputs in self.factors:
            choices = [self._split(inputs, outputs * self.units, v, room) for v in (4, 2, 1)]
            splits.append(min(choices, key=self._cycles))
            room -= (splits[-1].chunks - splits[-1].shared) * splits[-1].weights
        return splits

    def _split(self, inputs: int, outputs: int, vector: int, room: int) -> Split:
        chunks, weights = -(-inputs // (self.lanes * vector)), outputs * vector
        return Split(vector, chunks, weights, chunks - min(chunks, max(0, room) // weights))

    def _cycles(self, split: Split) -> float:
        """Approximate cycles of a product: four warps issue at a time, and one gets 32 numbers."""
        vector, chunks, weights, shared = split
        warps = self.threads // 32
        issued = self.rows * chunks * (weights + 1) + shared * weights // vector
        read = self.rows * chunks * max(1, self.lanes * vector / 32) + shared * weights
        return -(-warps // 4) * issued + warps * read

    @property
    def memory(self) -> int:
        """Bytes of shared memory."""
        states = (
            2 * self.rows * self.lanes * sum(split.chunks * split.vector for split in self.splits)
        )
        weights = sum(split.shared * split.weights for split in self.splits)
        return 4 * (states + (weights + DEPTH * self.streams) * self.threads + self.extra)

    def sizes(self, options: Options, several: bool = False) -> str:
        """The header ``sizes.cuh``, for one network or several."""
        tables = {
            "VECTOR": [split.vector for split in self.splits],
            "SHARED": [split.shared for split in self.splits],
        }
        return (
            constants(H=self.H, ROLES=self.roles, UNITS=self.units)
            + constants(DEPTH=DEPTH, THREADS=self.threads, SEVERAL=int(several))
            + "".join(
                f"constexpr int {name}[] = {{{', '.join(map(str, table))}}};\n"
                for name, table in tables.items()
            )
            + option_lines(options)
        )


def option_lines(options: Options) -> str:
    r"""The options as lines of a header.

    Example:
        >>> option_lines((("bool PACKED", "true"),))
        'constexpr bool PACKED = true;\n'
    """
    return "".join(f"constexpr {name} = {value};\n" for name, value in options)


@functools.cache
def best_block_layout(
    H: int,
    factors: tuple[Factor, ...],
    streams: int,
    extra: int,
    spare: int,
    memory: int,
    roles: int = 4,
    rows: int = 1,
) -> BlockLayout | None:
    """The layout that leaves enough registers and fits the rest into shared memory, if any does.

    Arguments:
        H: The number of units.
        factors: The products that a step consists of.
        streams: The numbers that a lane reads from global memory at every step.
        extra: Floats of shared memory for anything else.
        spare: Registers that are better left for it.
        memory: Bytes of shared memory that a block can have.
        roles: The lanes that a unit has.
        rows: The rows that a block computes.

    Example:
        >>> best_block_layout(100, ((100, 4),), 2, 0, 48, 232448, 2).splits
        [Split(vector=1, chunks=13, weights=16, shared=1)]
        >>> best_block_layout(300, ((300, 4),), 1, 0, 40, 232448) is None
        True
    """
    for left in range(spare, 24, -8):
        layout = BlockLayout(H, factors, streams, extra, left, roles, rows)
        if layout.threads <= 1024 and layout.memory <= memory - RESERVED:
            return layout
    return None


@functools.cache
def gate_kernel(
    device: int, source: str, layout: BlockLayout, options: Options, several: bool = False
) -> Kernel:
    """The kernel of a layout, on a device; ``several`` if a launch may run several networks."""
    with on(device):
        return Kernel(source, layout.sizes(options, several), layout.threads, 1, layout.memory)
