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
    """The content that :func:`store` wrote; None if there is none, or it cannot be trusted.

    The content will run with the user's rights. So a file counts only if this user owns it, if
    nobody else can write to it or to its folder, if it is not a link, and if it is complete.

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
        # the caller compiles instead, and store will say what is wrong with the folder
        return None
    return content if digest == _digest(path, content) else None


def store(path: Path, content: bytes) -> None:
    """Write a file for :func:`load`, completely or not at all.

    Raises:
        OSError: The folder is not writable, or others can write to it.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _check_owner(path.parent, os.stat(path.parent))
    # only this user can read or write a temporary file
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(_digest(path, content) + content)
    os.replace(file.name, path)


def _digest(path: Path, content: bytes) -> bytes:
    # the name is part of the digest, so that one kernel's file cannot stand in for another's
    return hashlib.sha256(path.name.encode() + b"\0" + content).digest()


def _check_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise PermissionError(f"expected {path} to be yours, but user {status.st_uid} owns it")
    if status.st_mode & OTHERS_WRITE:
        raise PermissionError(
            f"expected {path} to be writable by you alone, got mode "
            f"{stat.filemode(status.st_mode)}: chmod go-w {path}"
        )
