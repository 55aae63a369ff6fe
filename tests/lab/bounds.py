"""Which settings of a dataclass could be any word or any number."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from cayley.lab.settings import Free, Range


def unbounded(kind: type[Any]) -> list[str]:
    """The fields whose words are not listed, whose numbers have no range, and that give no reason.

    A table of any values counts as a word.
    """
    hints = get_type_hints(kind, include_extras=True)
    return [f"{kind.__name__}.{f.name}" for f in fields(kind) if any(_loose(hints[f.name]))]


def _loose(hint: Any) -> Iterator[bool]:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        notes = [note for note in parts[1:] if isinstance(note, (Free, Range))]
        assert all(note.reason for note in notes if isinstance(note, Free))
        if not notes:
            yield from _loose(parts[0])
    elif origin is not Literal:
        yield hint in (int, float, str, Any)
        for part in parts:
            if not (origin is dict and part is str):
                yield from _loose(part)
