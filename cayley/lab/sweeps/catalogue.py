"""The ready spaces of the package, and spaces by name or file."""

import difflib
from functools import cache
from pathlib import Path

from cayley.lab.errors import RecipeError
from cayley.lab.sweeps.space import Space, read_space

__all__ = ["find_space", "spaces"]

FOLDER = Path(__file__).parent / "spaces"


@cache
def spaces() -> dict[str, Space]:
    """The spaces of the package, by name.

    Example:
        >>> spaces()["scornn-mnist"].recipe
        'scornn/mnist-170'
    """
    return {path.stem: _read(path) for path in sorted(FOLDER.glob("*.toml"))}


def find_space(name: str) -> Space:
    """A space of the package, by its name, or a space from the user's own file.

    Arguments:
        name: A name such as ``scornn-mnist``, or a file such as ``mine.toml``.
    """
    if name.endswith(".toml"):
        return _read(Path(name))
    if name not in spaces():
        near = difflib.get_close_matches(name, spaces(), 3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "see cayley sweep --list"
        raise RecipeError(f"expected a space, by name or as a .toml file, got {name!r}: {hint}")
    return spaces()[name]


def _read(path: Path) -> Space:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"could not read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: expected text, got {error}") from error
    return read_space(text, path.stem, path.parent)
