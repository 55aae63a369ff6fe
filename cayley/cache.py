"""What an object keeps for itself, and its copies and pickles do without."""

from typing import Generic, TypeVar

__all__ = ["Cache"]

T = TypeVar("T")


class Cache(Generic[T]):
    """A place for what can be made anew; a copy of it is empty, and so is what is unpickled.

    CUDA graphs and closures can be neither copied nor pickled, and what was kept for one object is
    nothing that another should see.

    Attributes:
        value: What is kept, or None.

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
        return Cache, ()
