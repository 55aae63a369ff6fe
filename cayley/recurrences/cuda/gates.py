"""How the weights of a gated recurrence are laid out over the threads of one block."""

import functools
from dataclasses import dataclass

from torch import Tensor

from cayley.recurrences.cuda.nvrtc import Kernel, on
from cayley.recurrences.cuda.plans import RESERVED

__all__ = ["Factor", "Layout", "Options", "best_layout", "launch"]

ROLES = 4  # the lanes that a unit has
DEPTH = 4  # steps between the reading of an input and its use, and 1

Factor = tuple[int, int]  # of a product: its inputs, and its outputs for each unit
Options = tuple[tuple[str, str], ...]  # names and values of further constants


@dataclass(frozen=True)
class Layout:
    """Products of a recurrence of H units, as ``src/gates.cuh`` and ``src/product.cuh`` describe.

    Attributes:
        H: The number of units.
        factors: The products that a step consists of.
        streams: The arrays that a lane reads a number of at every step.
        extra: Floats of shared memory for anything else.
        spare: Registers that are left for it.
    """

    H: int
    factors: tuple[Factor, ...]
    streams: int
    extra: int
    spare: int

    @property
    def units(self) -> int:
        """Of a group of lanes, which then has four or eight sums to share."""
        return min(4, 8 // max(outputs for _, outputs in self.factors))

    @property
    def lanes(self) -> int:
        """Of a group; each sums over a part of the inputs."""
        return ROLES * self.units

    @property
    def threads(self) -> int:
        """Of a block: whole warps."""
        threads = -(-self.H // self.units) * self.lanes
        return -(-threads // 32) * 32

    @property
    def vectors(self) -> list[int]:
        """The states that a lane reads at a time: as many as fill its part of the inputs best."""
        lanes = self.lanes
        return [min((4, 2), key=lambda v: -(-n // (lanes * v)) * v) for n, _ in self.factors]

    @property
    def chunks(self) -> list[int]:
        """How often a lane reads states, for each product."""
        pairs = zip(self.factors, self.vectors, strict=True)
        return [-(-inputs // (self.lanes * vector)) for (inputs, _), vector in pairs]

    @property
    def chunk_weights(self) -> list[int]:
        """The weights that it multiplies with each time."""
        pairs = zip(self.factors, self.vectors, strict=True)
        return [outputs * self.units * vector for (_, outputs), vector in pairs]

    @property
    def shared(self) -> list[int]:
        """How often it does so with weights that are in shared memory, not in its registers."""
        # a quarter of a multiprocessor has 512 registers a lane, of which a thread can use 255
        room = min(255, 512 // -(-self.threads // 128) // 8 * 8) - self.spare
        shared = []
        for chunks, weights in zip(self.chunks, self.chunk_weights, strict=True):
            kept = min(chunks, max(0, room // weights))
            room -= kept * weights
            shared.append(chunks - kept)
        return shared

    @property
    def memory(self) -> int:
        """Bytes of shared memory."""
        reads = sum(c * v for c, v in zip(self.chunks, self.vectors, strict=True))
        states = 2 * self.lanes * reads
        weights = sum(s * w for s, w in zip(self.shared, self.chunk_weights, strict=True))
        return 4 * (states + (weights + DEPTH * self.streams) * self.threads + self.extra)

    def sizes(self, options: Options) -> str:
        """The header ``sizes.cuh``."""
        numbers = {"H": self.H, "UNITS": self.units, "DEPTH": DEPTH, "THREADS": self.threads}
        tables = {"VECTOR": self.vectors, "SHARED": self.shared}
        return (
            "".join(f"constexpr int {name} = {value};\n" for name, value in numbers.items())
            + "".join(
                f"constexpr int {name}[] = {{{', '.join(map(str, table))}}};\n"
                for name, table in tables.items()
            )
            + "".join(f"constexpr {name} = {value};\n" for name, value in options)
        )


@functools.cache
def best_layout(
    H: int, factors: tuple[Factor, ...], streams: int, extra: int, spare: int, memory: int
) -> Layout | None:
    """The layout with as few weights in registers as leaves room, and memory for the rest, if any.

    Arguments:
        H: The number of units.
        factors: The products that a step consists of.
        streams: The arrays that a lane reads a number of at every step.
        extra: Floats of shared memory for anything else.
        spare: Registers that are better left for it.
        memory: Bytes of shared memory that a block can have.

    Example:
        >>> best_layout(100, ((100, 4),), 1, 0, 40, 232448).shared
        [2]
        >>> best_layout(300, ((300, 4),), 1, 0, 40, 232448) is None
        True
    """
    for left in range(spare, 24, -8):
        layout = Layout(H, factors, streams, extra, left)
        if layout.threads <= 1024 and layout.memory <= memory - RESERVED:
            return layout
    return None


def launch(
    source: str,
    layout: Layout | None,
    options: Options,
    B: int,
    x: Tensor,
    *rest: Tensor | int | None,
) -> None:
    """Run a kernel on the device of x, with a block for each of B rows."""
    if layout is None:
        raise NotImplementedError(f"expected a size that refusal() lets pass, got {x.shape}")
    _kernel(x.device.index, source, layout, options)(B, x, *rest)


@functools.cache
def _kernel(device: int, source: str, layout: Layout, options: Options) -> Kernel:
    with on(device):
        return Kernel(source, layout.sizes(options), layout.threads, 1, layout.memory)
