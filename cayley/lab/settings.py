"""The type, the words and the range of a setting, checked the same way everywhere."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from cayley.lab.errors import RecipeError

__all__ = ["Free", "Range", "check_settings", "convert"]

# makes a dataclass from its class, a table, and the path of that table
Maker = Callable[[type[Any], Any, str], Any]


@dataclass(frozen=True)
class Range:
    """The range of a setting, as ``Annotated[int, Range(1, 100)]``; only finite numbers.

    Arguments:
        least: The smallest.
        most: The largest; None for no limit.
        below: An exclusive upper limit; None for none.

    Example:
        >>> 0.5 in Range(0, below=1), 1.0 in Range(0, below=1), math.nan in Range(0)
        (True, False, False)
        >>> print(Range(0, below=1), Range(1, 10**6), Range(0), sep="; ")
        from 0 to less than 1; from 1 to 1,000,000; of at least 0
    """

    least: float
    most: float | None = None
    below: float | None = None

    def __contains__(self, value: float) -> bool:
        # an integer may be too large for a float, to which isfinite converts it
        return (
            (isinstance(value, int) or math.isfinite(value))
            and value >= self.least
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        if self.below is not None:
            return f"from {self.least:,} to less than {self.below:,}"
        if self.most is not None:
            return f"from {self.least:,} to {self.most:,}"
        return f"of at least {self.least:,}"


@dataclass(frozen=True)
class Free:
    """Why a setting has no list of words and no range, as ``Annotated[str, Free("a path")]``.

    Arguments:
        reason: What checks it instead, or why nothing does.
    """

    reason: str


def convert(value: Any, hint: Any, path: str, make: Maker | None = None) -> Any:
    """A value converted to its type: lists become tuples, integers floats, tables dataclasses.

    Arguments:
        value: As TOML or Python gives it.
        hint: The annotation. Types other than ``int``, ``float``, ``str``, ``bool``, ``None``,
            ``Literal``, tuple, dict, dataclass, a union, or one of them with a :class:`Range` are
            not checked.
        path: The name of the setting in a message.
        make: Makes a dataclass from a table; without it, a dataclass must be given itself.

    Example:
        >>> convert([1, 2], tuple[Annotated[int, Range(1)], ...], "sizes")
        (1, 2)
        >>> try:
        ...     convert("column", Literal["rows", "permuted"], "task.order")
        ... except RecipeError as error:
        ...     print(error)
        task.order: expected 'rows' or 'permuted', got 'column'
    """
    kind, parts, is_table = _taken_apart(hint)
    if is_table and make is not None:
        return make(kind, value, path)
    if kind is Annotated:
        ranges = [note for note in parts[1:] if isinstance(note, Range)]
        result = convert(value, parts[0], path, make)
        if all(result in one for one in ranges):
            return result
    elif kind is tuple and isinstance(value, (list, tuple)):
        return tuple(convert(part, parts[0], path, make) for part in value)
    elif kind is dict and isinstance(value, Mapping):
        return {key: convert(one, parts[1], f"{path}.{key}", make) for key, one in value.items()}
    elif kind in (Union, UnionType):
        if isinstance(value, Mapping) and (tables := [p for p in parts if _is_table(p)]):
            # its error is more specific than that of the union
            return convert(value, tables[0], path, make)
        for part in parts:
            try:
                return convert(value, part, path, make)
            except RecipeError:
                continue
    elif kind is Literal:
        # 1 and 1.0 and True are the same to Python, not to us
        if any(value == part and type(value) is type(part) for part in parts):
            return value
    elif kind is float:
        if type(value) in (int, float):
            return _float(value, path)
    elif kind in (int, str, bool, type(None)) or is_table:
        if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
    elif kind not in (tuple, dict):
        return value
    raise RecipeError(f"{path}: expected {words(hint)}, got {value!r}")


def check_settings(settings: Any, path: str = "") -> None:
    """Convert every field of a dataclass, even a frozen one; raise if one is wrong.

    Arguments:
        settings: The dataclass.
        path: The prefix of a field's name in a message.

    Example:
        >>> @dataclass(frozen=True)
        ... class Cake:
        ...     eggs: Annotated[int, Range(1, 12)] = 3
        ...     def __post_init__(self):
        ...         check_settings(self)
        >>> Cake(13)
        Traceback (most recent call last):
        ...
        cayley.lab.errors.RecipeError: eggs: expected an integer from 1 to 12, got 13
    """
    hints = get_type_hints(type(settings), include_extras=True)
    for field in fields(settings):
        value = convert(getattr(settings, field.name), hints[field.name], path + field.name)
        object.__setattr__(settings, field.name, value)


def words(hint: Any) -> str:
    """What a type allows, for messages."""
    kind, parts, is_table = _taken_apart(hint)
    if kind is Annotated:
        return " ".join([words(parts[0]), *(str(n) for n in parts[1:] if isinstance(n, Range))])
    if kind is Literal:
        return " or ".join(map(repr, parts))
    if kind in (Union, UnionType):
        return " or ".join(map(words, parts))
    if kind is tuple:
        return f"a list in brackets, each {words(parts[0])}"
    names = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}
    if is_table:
        return f"an instance of {kind.__name__}"
    return names.get(kind, "nothing" if kind is type(None) else "a table")


# cached, since hundreds of recipes have the same settings
@cache
def _taken_apart(hint: Any) -> tuple[Any, tuple[Any, ...], bool]:
    """The kind of a type, its parts, and whether that kind is a dataclass."""
    kind = get_origin(hint) or hint
    return kind, get_args(hint), is_dataclass(kind)


def _float(value: int | float, path: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise RecipeError(f"{path}: expected a number, got one that no float can hold") from None


def _is_table(hint: Any) -> bool:
    return is_dataclass(hint) or get_origin(hint) is dict
