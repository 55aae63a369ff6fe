"""How many networks share a device at a time, which decides how a kernel is best laid out.

A kernel that has a multiprocessor for each of its rows should finish a row as early as it can.
Among others like it there are more rows than multiprocessors, and rows a second are what counts.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["crowd", "crowded"]

# By device, and of all threads, since autograd computes gradients in threads of its own. They may
# leave in any order, so that none can put back what it has found.
_crowds: defaultdict[int | None, list[int]] = defaultdict(list)


@contextmanager
def crowded(networks: int, device: int | None = None) -> Iterator[None]:
    """Context in which calls of so many networks of one kind run on a device at the same time.

    Arguments:
        networks: Their number.
        device: The number of the GPU; None for the CPU.

    Example:
        >>> with crowded(16):
        ...     crowd(), crowd(0)
        (16, 1)
        >>> crowd()
        1
    """
    _crowds[device].append(networks)
    try:
        yield
    finally:
        _crowds[device].remove(networks)


def crowd(device: int | None = None) -> int:
    """The number of networks whose calls run at the same time as this one, itself included."""
    return max(_crowds[device], default=1)
