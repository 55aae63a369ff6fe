"""Errors that a user can fix, each with the exit code of the command."""

__all__ = [
    "DataError",
    "Interrupted",
    "LabError",
    "MachineError",
    "NotFinite",
    "RecipeError",
    "RunError",
    "is_lost_process",
    "is_shortage",
]


class LabError(RuntimeError):
    """An error that a user can fix; the message says how."""

    code = 1


class DataError(LabError):
    """Data that are missing, damaged or not accessible."""


class MachineError(LabError):
    """A device that does not exist or cannot be used."""


class RecipeError(LabError, ValueError):
    """Settings that cannot be used."""

    code = 2


class NotFinite(LabError):
    """A loss, a score or a weight that is infinite or not a number."""

    code = 3


class RunError(LabError):
    """A run folder that cannot be used."""

    code = 4


def is_shortage(error: Exception) -> bool:
    """Whether an error of Python or torch is about too little memory.

    Example:
        >>> is_shortage(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"))
        True
    """
    return isinstance(error, MemoryError) or "tried to allocate" in str(error).lower()


def is_lost_process(error: BaseException) -> bool:
    """Whether an error of torch says that another process of a run has gone.

    Example:
        >>> is_lost_process(RuntimeError("gloo/transport/tcp/pair.cc: Connection closed by peer"))
        True
    """
    kinds = ("DistBackendError", "DistNetworkError", "DistStoreError")
    if any(kind.__name__.lstrip("_") in kinds for kind in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError) and "gloo" in str(error).lower()


class Interrupted(LabError):
    """A run that was asked to stop, and did after writing a checkpoint.

    Arguments:
        message: Where it stopped.
        signal: The number of the signal that asked.
    """

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.code = 128 + signal
