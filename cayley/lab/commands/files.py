"""Files that commands write."""

from argparse import Namespace
from pathlib import Path

from cayley.lab.errors import RunError

__all__ = ["absolute_paths", "write_file"]


def write_file(path: Path, content: bytes) -> None:
    """Write a file, and the folders above it; all of it, or what was there stays.

    Arguments:
        path: Where to.
        content: What.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            # such as /dev/stdout
            path.write_bytes(content)
            return
        place = path.resolve()
        part = place.with_name(f"{place.name}.part")
        try:
            part.write_bytes(content)
            part.replace(place)
        finally:
            part.unlink(missing_ok=True)
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
