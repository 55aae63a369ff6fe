"""Warnings that are given once, and the record of those that have been given."""

import warnings
from weakref import WeakKeyDictionary

__all__ = ["forget_notices", "warn_once"]

_given: set[str] = set()
_given_by: WeakKeyDictionary[object, set[str]] = WeakKeyDictionary()


def warn_once(message: str, *, key: str, owner: object | None = None, stacklevel: int = 2) -> None:
    """Warn, unless a warning with this key has been given before.

    Arguments:
        message: The text.
        key: Identifies the warning; the message itself may contain numbers that change.
        owner: The object that warns, if each object may warn once; None for once per process.
        stacklevel: As in :func:`warnings.warn`, seen from the caller.

    Example:
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     for step in range(3):
        ...         warn_once(f"slow, in step {step}", key="slow")
        >>> [str(warning.message) for warning in caught]
        ['slow, in step 0']
        >>> forget_notices()
    """
    given = _given if owner is None else _given_by.setdefault(owner, set())
    if key not in given:
        given.add(key)
        warnings.warn(message, stacklevel=stacklevel + 1)


def forget_notices() -> None:
    """Clear the record, as at the start of a process; tests do, so that their order is free."""
    _given.clear()
    _given_by.clear()
