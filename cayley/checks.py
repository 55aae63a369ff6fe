"""Checks of arguments that many constructors share."""

import math
from typing import TypeGuard

__all__ = ["check_flag", "check_integer", "check_number", "is_integer"]


def check_flag(name: str, value: object) -> None:
    """Raise unless an argument is True or False.

    Example:
        >>> check_flag("bias", "relu")
        Traceback (most recent call last):
        TypeError: expected bias to be True or False, got 'relu': give other options by name
    """
    if not isinstance(value, bool):
        raise TypeError(
            f"expected {name} to be True or False, got {value!r}: give other options by name"
        )


def is_integer(value: object) -> TypeGuard[int]:
    """Whether a value is an integer; True and False do not count.

    Example:
        >>> is_integer(3), is_integer(3.0), is_integer(True)
        (True, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool)


def check_integer(name: str, value: object, at_least: int = 1) -> None:
    """Raise unless an argument is an integer of at least some value.

    Example:
        >>> check_integer("hidden_size", 0)
        Traceback (most recent call last):
        ValueError: expected hidden_size to be at least 1, got 0
    """
    if not is_integer(value):
        raise TypeError(f"expected {name} to be an int, got {type(value).__name__}: {value!r}")
    if value < at_least:
        raise ValueError(f"expected {name} to be at least {at_least}, got {value}")


def check_number(
    owner: object, name: str, value: object, *, below: float = math.inf, closed: bool = False
) -> None:
    """Raise unless ``value`` is a number from 0 to ``below`` (itself included where ``closed``).

    Example:
        >>> check_number("SGD", "lr", -1.0)
        Traceback (most recent call last):
        ValueError: SGD: expected a finite lr of at least 0, got -1.0
    """
    owner = owner if isinstance(owner, str) else type(owner).__name__
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{owner}: expected {name} as a float, got {value!r}: write float({name})")
    # written so that NaN fails too
    if not (0 <= value < below or (closed and value == below)):
        expected = f"a {name} of at least 0" if closed else f"a finite {name} of at least 0"
        if below < math.inf:
            expected = f"{name} from 0 to {below:g}" + ("" if closed else f", {below:g} excluded")
        raise ValueError(f"{owner}: expected {expected}, got {value}")
