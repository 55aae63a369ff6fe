"""Frozen dataclasses from tables of settings, checked for unknown and missing keys and types."""

import difflib
from collections.abc import Collection, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, get_type_hints

from cayley.lab.errors import RecipeError
from cayley.lab.settings import convert

__all__ = ["FURTHER", "check_keys", "from_table", "to_table"]

# metadata of a field that takes all keys of a table that are not fields of the dataclass
FURTHER = {"further": True}


def from_table(kind: type[Any], content: Any, path: str = "", *, strict: bool = True) -> Any:
    """A dataclass from a table.

    Arguments:
        kind: The dataclass; its fields may be dataclasses.
        content: The table, as TOML gives it.
        path: Where the table is, such as ``"optim."``.
        strict: Whether an unknown key is an error; otherwise it is ignored.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Cake:
        ...     eggs: int
        ...     layers: tuple[str, ...] = ()
        >>> from_table(Cake, {"eggs": 3, "layers": ["cream"]})
        Cake(eggs=3, layers=('cream',))
        >>> from_table(Cake, {"egs": 3})
        Traceback (most recent call last):
        ...
        cayley.lab.errors.RecipeError: unknown key egs: did you mean eggs?
    """
    if not isinstance(content, Mapping):
        raise RecipeError(f"{path[:-1] and path[:-1] + ': '}expected a table, got {content!r}")
    further = _further(kind)
    valid, required = _names(kind)
    others = {key: value for key, value in content.items() if further and key not in valid}
    keys = [key for key in content if key not in others and (strict or key in valid)]
    check_keys(keys, valid, required, path, others)
    hints = _hints(kind)

    def make(kind: type[Any], content: Any, path: str) -> Any:
        return from_table(kind, content, path + ".", strict=strict)

    values = {
        key: convert(content[key], hints[key], path + key, make) for key in valid if key in content
    }
    return kind(**values, **({further.name: others} if further else {}))


# cached, since the same few classes are used for hundreds of recipes
@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


@cache
def _names(kind: type[Any]) -> tuple[list[str], list[str]]:
    """The allowed and the required fields of a table."""
    own = [f for f in fields(kind) if f is not _further(kind)]
    required = [f.name for f in own if f.default is f.default_factory is MISSING]
    return [f.name for f in own], required


def to_table(settings: Any) -> dict[str, Any]:
    """The table that :func:`from_table` turns into this dataclass; None is left out."""
    content: dict[str, Any] = {}
    further = _further(type(settings))
    for f in fields(settings):
        value = getattr(settings, f.name)
        if f is further:
            content |= value
        elif is_dataclass(value):
            content[f.name] = to_table(value)
        elif value is not None:
            content[f.name] = value
    return content


def check_keys(
    content: Collection[str],
    valid: Collection[str],
    required: Collection[str],
    path: str = "",
    others: Collection[str] = (),
) -> None:
    """Raise if a key is unknown or missing; the message names the nearest one.

    Arguments:
        content: The given keys.
        valid: The allowed keys.
        required: The required keys.
        path: The prefix of a key in the message.
        others: Keys that are given and allowed, but could be misspelt.
    """
    for key in content:
        if key not in valid:
            near = difflib.get_close_matches(key, valid, 1)
            hint = f"did you mean {path}{near[0]}?" if near else f"expected {', '.join(valid)}"
            raise RecipeError(f"unknown key {path}{key}: {hint}")
    for key in required:
        if key not in content:
            near = difflib.get_close_matches(key, others, 1)
            hint = f": is {path}{near[0]} misspelt?" if near else ""
            raise RecipeError(f"missing key {path}{key}{hint}")


@cache
def _further(kind: type[Any]) -> Field[Any] | None:
    return next((f for f in fields(kind) if "further" in f.metadata), None)
