"""Caches that an object's copies and pickles leave out."""

import threading
from typing import Generic, TypeVar

__all__ = ["Cache", "ThreadCache"]

T = TypeVar("T")


class Cache(Generic[T]):
    """A place for a value that can be made again; copying or unpickling gives an empty one.

    CUDA graphs and closures can be neither copied nor pickled, and what one object has cached must
    not be used by its copies.

    Attributes:
        value: The cached value, or None.

    Example:
        >>> import copy
        >>> cache = Cache()
        >>> cache.value = lambda: 1
        >>> copy.deepcopy(cache).value is None
        True
    """

    def __init__(self) -> None:
        self.value: T | None = None

    def __reduce__(self) -> tuple[type["Cache"], tuple[()]]:
        return type(self), ()


class ThreadCache(threading.local, Cache[T]):
    """The same, with a value of its own in each thread."""
