"""How many networks share a device at a time, which decides how a kernel is best laid out.

A kernel that has a multiprocessor for each of its rows should finish a row as early as it can.
Among others like it there are more rows than multiprocessors, and rows a second are what counts.
"""

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["crowd", "crowded"]

# Of all threads, since autograd computes gradients in threads of its own. They may leave in any
# order, so that none can put back what it has found.
_crowds: list[int] = []


@contextmanager
def crowded(networks: int) -> Iterator[None]:
    """Context in which calls of so many networks of one kind run at the same time.

    Example:
        >>> with crowded(16):
        ...     crowd()
        16
        >>> crowd()
        1
    """
    _crowds.append(networks)
    try:
        yield
    finally:
        _crowds.remove(networks)


def crowd() -> int:
    """The number of networks whose calls run at the same time as this one, itself included."""
    return max(_crowds, default=1)
