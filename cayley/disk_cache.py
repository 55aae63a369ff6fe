"""A folder for compiled kernels and other code that only its owner can have written."""

import hashlib
import os
import stat
import tempfile
from pathlib import Path

__all__ = ["cache_folder", "load", "store"]

DIGEST_SIZE = hashlib.sha256().digest_size
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cache_folder() -> Path:
    """Where they are kept: ``$CAYLEY_CACHE``, else in the user's folder for caches."""
    if folder := os.environ.get("CAYLEY_CACHE"):
        return Path(folder).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cayley"


def load(path: Path) -> bytes | None:
    """What :func:`store` has written to a file, or None where it cannot be trusted or is not there.

    What is kept runs with the user's rights, so that a file counts only if this user owns it and
    nobody else can write to it or to its folder, if it is no link, and if its content is whole.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store(Path(folder) / "kernel", b"code")
        ...     load(Path(folder) / "kernel"), load(Path(folder) / "other")
        (b'code', None)
    """
    try:
        _check_owner(path.parent, os.stat(path.parent))
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            _check_owner(path, os.fstat(file.fileno()))
            digest, content = file.read(DIGEST_SIZE), file.read()
    except OSError:
        # the caller compiles instead, and store says what is wrong with the folder
        return None
    return content if digest == _digest(path, content) else None


def store(path: Path, content: bytes) -> None:
    """Write a file for :func:`load`, as a whole or not at all.

    Raises:
        OSError: The folder cannot be written, or others can write to it.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _check_owner(path.parent, os.stat(path.parent))
    # only this user can read or write a temporary file
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(_digest(path, content) + content)
    os.replace(file.name, path)


def _digest(path: Path, content: bytes) -> bytes:
    # the name is a part of it: it tells what was compiled, and one kernel is not another
    return hashlib.sha256(path.name.encode() + b"\0" + content).digest()


def _check_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise PermissionError(f"expected {path} to be yours, got one of user {status.st_uid}")
    if status.st_mode & OTHERS_WRITE:
        raise PermissionError(
            f"expected that only you can write to {path}, got mode "
            f"{stat.filemode(status.st_mode)}: chmod go-w {path}"
        )
