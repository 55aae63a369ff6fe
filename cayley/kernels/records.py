"""Nested named tuples ("records") as flat lists, which torch operators take."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from types import UnionType
from typing import Any, get_args, get_type_hints

from torch import Tensor

__all__ = ["Fields"]

SCHEMA_TYPES = {bool: "bool", int: "SymInt", float: "float", str: "str"}


@dataclass(frozen=True)
class Fields:
    """The fields of a record and of the records in it, to flatten its values into one list.

    Attributes:
        record: The record.
        inner: For each field that holds a record or None, the fields of that record; else None.
        names: The names of all values; those of an inner record begin with the name of its field.
        tensors: The names of those that are tensors or None; they come first.
        schema: The names with their types, as in an operator's schema.
        nested: Whether there are records in the record.

    Example:
        >>> from cayley.kernels.calls import GruCall
        >>> Fields.of(GruCall).schema  # doctest: +ELLIPSIS
        'Tensor x, Tensor h0, Tensor W, Tensor? b, ..., bool reverse'
    """

    record: type
    inner: tuple["Fields | None", ...]
    names: tuple[str, ...]
    tensors: tuple[str, ...]
    schema: str
    nested: bool

    @classmethod
    def of(cls, record: type, prefix: str = "", optional: bool = False) -> "Fields":
        """The fields of a record; if the record may be None, so may every tensor in it."""
        inner: list[Fields | None] = []
        names, tensors, schema = [], [], []
        for name, hint in get_type_hints(record).items():
            kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
            own, missing = f"{prefix}{name}", optional or len(kinds) > 1
            if issubclass(kinds[0], tuple):
                part = cls.of(kinds[0], f"{own}_", missing)
                inner.append(part)
                names += part.names
                tensors += part.tensors
                schema.append(part.schema)
                continue
            inner.append(None)
            names.append(own)
            if kinds[0] is Tensor:
                tensors.append(own)
                schema.append(f"Tensor{'?' if missing else ''} {own}")
            else:
                schema.append(f"{SCHEMA_TYPES[kinds[0]]} {own}")
        assert names[: len(tensors)] == tensors, "expected a record with its tensors first"
        nested = any(part is not None for part in inner)
        return cls(record, (*inner,), (*names,), (*tensors,), ", ".join(schema), nested)

    def flatten(self, value: Sequence[Any]) -> Sequence[Any]:
        """All values of a record."""
        if not self.nested:
            # torch.compile in torch 2.8 cannot slice a named tuple
            return (*value,)
        parts: list[Sequence[Any]] = []
        for part, inner in zip(value, self.inner, strict=True):
            if inner is None:
                parts.append((part,))
            else:
                parts.append((None,) * len(inner.names) if part is None else part)
        return [leaf for part in parts for leaf in part]

    def unflatten(self, flat: Sequence[Any]) -> Any:
        """The record with these values; an inner record is None if its first value is."""
        if not self.nested:
            return self.record(*flat)
        values = iter(flat)
        parts = []
        for inner in self.inner:
            if inner is None:
                parts.append(next(values))
            else:
                own = [*islice(values, len(inner.names))]
                parts.append(None if own[0] is None else inner.record(*own))
        return self.record(*parts)
