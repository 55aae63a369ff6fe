"""Files that commands write."""

from argparse import Namespace
from pathlib import Path

from cayley.lab.errors import RunError

__all__ = ["absolute_paths", "write_file"]


def write_file(path: Path, content: bytes) -> None:
    """Write a file, and the folders above it.

    Arguments:
        path: Where to.
        content: What.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise RunError(f"could not write {path}: {error.strerror}: choose another place") from error


def absolute_paths(options: Namespace) -> Namespace:
    """Options whose paths mean the same in any folder, and on any machine that has them.

    Example:
        >>> absolute_paths(Namespace(output=Path("/runs/../all"), data=None)).output.as_posix()
        '/all'
    """
    data = None if options.data is None else options.data.resolve()
    return Namespace(**vars(options) | {"output": options.output.resolve(), "data": data})
