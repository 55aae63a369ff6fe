"""Files that commands write."""

from pathlib import Path

from cayley.lab.errors import RunError

__all__ = ["write_file"]


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
