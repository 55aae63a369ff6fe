"""The settings of recipes by dotted key, for users who change one."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from cayley.lab.recipes.catalogue import tables
from cayley.lab.recipes.reading import FURTHER
from cayley.lab.recipes.schema import Recipe

__all__ = ["setting_keys"]

# keys about the paper, not about the run
ABOUT = ("name", "note", "paper", "location", "reported", "claims", "unstated", "parameters")


def setting_keys() -> list[str]:
    """The keys of the schema, and further ones that the tables use, in order.

    Example:
        >>> keys = setting_keys()
        >>> "training.batch" in keys, "task.T" in keys, "note" in keys
        (True, True, False)
    """
    rows = (
        layer
        for table in tables().values()
        for entry in table.entries
        for layers in entry.layers.values()
        for layer in layers
    )
    used = {key for row in rows for key in _used(row)}
    return sorted(key for key in {*_known(Recipe), *used} if key.split(".")[0] not in ABOUT)


def _known(kind: type) -> Iterator[str]:
    hints = get_type_hints(kind)
    for field in fields(kind):
        if is_dataclass(hint := hints[field.name]):
            yield from (f"{field.name}.{key}" for key in _known(hint))
        elif not field.metadata.keys() & FURTHER.keys():
            yield field.name


def _used(row: Mapping[str, Any]) -> Iterator[str]:
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from (f"{key}.{inner}" for inner in _used(value))
        else:
            yield key
