"""Errors that a user can fix, each with the exit code of the command."""

__all__ = [
    "DataError",
    "Interrupted",
    "LabError",
    "MachineError",
    "NotFinite",
    "RecipeError",
    "RunError",
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


class Interrupted(LabError):
    """A run that was asked to stop, and did after writing a checkpoint.

    Arguments:
        message: Where it stopped.
        signal: The number of the signal that asked.
    """

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.code = 128 + signal
