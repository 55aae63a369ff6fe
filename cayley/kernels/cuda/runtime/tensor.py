"""How the weights of a recurrence are laid out over a block that multiplies by tensor cores."""

from dataclasses import dataclass

from cayley.kernels.cuda.runtime.chip import registers
from cayley.kernels.cuda.runtime.nvrtc import constants

__all__ = ["EIGHT", "TensorLayout"]

EIGHT = 8  # the rows of the batch that a block computes
UNITS = 16  # those of a warp, and the inputs of a step
DEPTH = 2  # one more than the steps between reading an input and using it


@dataclass(frozen=True)
class TensorLayout:
    """The product of a recurrence of H units, as ``src/tensor.cuh`` describes.

    Attributes:
        H: The number of units.
        inputs: The inputs of the product for each unit.
        tiles: The outputs of a warp, in tiles of 16.
        streams: The numbers that a lane reads from global memory at every step.
        spare: Registers that are left for anything but weights.

    Example:
        >>> layout = TensorLayout(128, 1, 4, 2, 64)
        >>> layout.threads, layout.steps, layout.shared
        (256, 8, 3)
    """

    H: int
    inputs: int
    tiles: int
    streams: int
    spare: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * -(-self.H // UNITS)

    @property
    def steps(self) -> int:
        """The steps that the inputs are taken in."""
        return self.inputs * self.threads // 32

    @property
    def shared(self) -> int:
        """How many of them have their weights in shared memory."""
        room = max(0, registers(self.threads) - self.spare)
        return max(0, self.steps - room // (8 * self.tiles))

    @property
    def memory(self) -> int:
        """Bytes of shared memory."""
        # and a number for each warp, in fours
        states = 2 * (self.steps * 4 * 32 + -(-self.threads // 128) * 4)
        lane = 8 * self.shared * self.tiles + DEPTH * self.streams
        return 4 * (states + lane * self.threads)

    def sizes(self, inputs: int, several: bool) -> str:
        """The header ``sizes.cuh``; ``inputs`` is 1 if the kernel reads a single input itself."""
        numbers = {"H": self.H, "THREADS": self.threads, "DEPTH": DEPTH, "SHARED": self.shared}
        return constants(**numbers, INPUTS=inputs, SEVERAL=int(several))
