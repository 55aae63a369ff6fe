"""Seals: whether a file of a run is as it was written, and which run it belongs to."""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Seal", "digest", "make_trailer", "open_bytes", "open_json", "seal_json"]

MARK = b"\ncayley seal "
# longer than any trailer
TAIL = 400


@dataclass(frozen=True)
class Seal:
    """Which run a file belongs to.

    Attributes:
        run: The run's id.
        recipe: The digest of its recipe.
    """

    run: str = ""
    recipe: str = ""


def digest(*parts: bytes | memoryview | str) -> str:
    """The SHA-256 of some bytes, in hexadecimal.

    Example:
        >>> digest("ab", "c") == digest("abc")
        True
    """
    state = hashlib.sha256()
    for part in parts:
        state.update(part.encode() if isinstance(part, str) else part)
    return state.hexdigest()


def make_trailer(content: bytes | memoryview, seal: Seal) -> bytes:
    """The bytes to append to a file's content; zip files, and so torch's, may have such an end.

    Arguments:
        content: The file without them.
        seal: The seal of the run.
    """
    words = json.dumps(asdict(seal))
    checked = json.dumps(asdict(seal) | {"sha256": digest(content, words)})
    return MARK + checked.encode() + b"\n"


def open_bytes(content: bytes) -> tuple[memoryview, Seal]:
    """The content of a file with a trailer, and the seal; raise if they do not fit.

    Example:
        >>> content = b"weights" + make_trailer(b"weights", Seal("a run", "a recipe"))
        >>> bytes(open_bytes(content)[0])
        b'weights'
        >>> open_bytes(b"W" + content[1:])
        Traceback (most recent call last):
        ...
        ValueError: its checksum is not that of its content
    """
    start = content.rfind(MARK, -TAIL)
    if start < 0:
        raise ValueError("there is no checksum at its end")
    body = memoryview(content)[:start]
    try:
        seal = _read(json.loads(content[start + len(MARK) :]))
    except ValueError:
        raise ValueError("the checksum at its end is damaged") from None
    if make_trailer(body, seal) != content[start:]:
        raise ValueError("its checksum is not that of its content")
    return body, seal


def seal_json(content: dict[str, Any], seal: Seal) -> dict[str, Any]:
    """JSON with a seal, which does not depend on the indentation.

    Example:
        >>> open_json(seal_json({"mse": 0.5}, Seal("a run", "a recipe"))).run
        'a run'
    """
    sealed = content | {"seal": asdict(seal)}
    checksum = digest(json.dumps(sealed, sort_keys=True))
    return content | {"seal": asdict(seal) | {"sha256": checksum}}


def open_json(content: dict[str, Any]) -> Seal:
    """The seal of JSON; raise if it does not fit the rest."""
    if "seal" not in content:
        raise ValueError("there is no checksum in it")
    seal = _read(content["seal"])
    rest = {key: value for key, value in content.items() if key != "seal"}
    if seal_json(rest, seal) != content:
        raise ValueError("its checksum is not that of its content")
    return seal


def _read(content: Any) -> Seal:
    match content:
        case {"run": str(run), "recipe": str(recipe)}:
            return Seal(run, recipe)
    raise ValueError("its checksum is damaged")
