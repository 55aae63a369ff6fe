"""The properties of a GPU that the layout of a kernel depends on."""

import functools
from dataclasses import dataclass

import torch

from cayley.kernels.cuda.runtime.nvrtc import launches_together

__all__ = ["RESERVED", "Chip", "chip", "no_room", "registers"]

RESERVED = 1024  # bytes of shared memory that the system takes of every block


@dataclass(frozen=True)
class Chip:
    """The properties of a device that a plan depends on.

    Attributes:
        processors: The number of multiprocessors.
        memory: Bytes of shared memory that a block can have.
        cluster: The number of blocks that can exchange states; 1 if there are no clusters.
        together: Whether all blocks of a launch can be made to run at the same time.
    """

    processors: int
    memory: int
    cluster: int
    together: bool = True

    def resident(self, blocks: int) -> int:
        """How many clusters run at a time, one block on each multiprocessor.

        The multiprocessors come in groups, and a cluster lies in one of them. On an H200, with 132,
        there is room for 66, 30, 15 and 7 clusters of 2, 4, 8 and 16 blocks.
        """
        usable = self.processors if blocks <= 2 else self.processors * 10 // 11
        return max(1, usable // blocks)


@functools.cache
def chip(device: int) -> Chip:
    """The device with this number."""
    properties = torch.cuda.get_device_properties(device)
    cluster = {9: 16, 10: 16}.get(properties.major, 8 if properties.major > 9 else 1)
    # pyrefly: ignore[missing-attribute]
    memory = properties.shared_memory_per_block_optin
    return Chip(properties.multi_processor_count, memory, cluster, launches_together(device))


def no_room(what: str, device: torch.device) -> str:
    """The reason for refusing something that is too large for a device."""
    name = torch.cuda.get_device_name(device)
    if chip(device.index).together:
        return f"{what} do not fit on the chip of {name}"
    return f"{what} do not fit on a multiprocessor of {name}, whose driver has no teams of blocks"


def registers(threads: int) -> int:
    """Registers per thread of a block that is alone on its multiprocessor.

    A quarter of a multiprocessor has 512 registers per lane, of which a thread can use 255.

    Example:
        >>> registers(256), registers(512)
        (255, 128)
    """
    return min(255, 512 // -(-threads // 128) // 8 * 8)
