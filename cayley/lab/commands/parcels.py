"""Run folders as bytes, for machines that share no storage."""

import io
import shutil
from pathlib import Path
from zipfile import ZipFile

__all__ = ["pack", "unpack"]

# held by the process that writes the folder, and of no use elsewhere
LOCK = "lock"


def pack(folder: Path) -> bytes:
    """All files of a folder; none if there is no such folder.

    Arguments:
        folder: That nobody writes just now.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as place:
        ...     one, other = Path(place, "one"), Path(place, "other")
        ...     one.mkdir()
        ...     _ = (one / "result.json").write_text("{}")
        ...     unpack(pack(one), other)
        ...     [path.name for path in other.iterdir()]
        ['result.json']
    """
    buffer = io.BytesIO()
    with ZipFile(buffer, "w") as archive:
        for path in sorted(folder.rglob("*")):
            if path != folder / LOCK:
                archive.write(path, path.relative_to(folder))
    return buffer.getvalue()


def unpack(content: bytes, folder: Path) -> None:
    """Replace a folder by the files that :func:`pack` took.

    Arguments:
        content: The files; the folder stays as it is if there are none.
        folder: Replaced as a whole, by one move.
    """
    part, old = (folder.with_name(f".{folder.name}.{word}") for word in ("part", "old"))
    for one in (part, old):
        shutil.rmtree(one, ignore_errors=True)
    # of a zip archive nothing can lie outside the folder; of a tar only since Python 3.11.4
    with ZipFile(io.BytesIO(content)) as archive:
        if not archive.namelist():
            return
        archive.extractall(part)
    if folder.exists():
        folder.rename(old)
    part.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
