"""Data files: found in a folder that the user gives, checked, or downloaded on request."""

import gzip
import hashlib
import lzma
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

from cayley.lab.errors import DataError, LabError

__all__ = ["NOWHERE", "Resource", "Source", "explain_damage", "find_files"]

DEPTH = 3
OPENERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.decompress,
    ".xz": lzma.decompress,
}


@contextmanager
def explain_damage(name: str) -> Iterator[None]:
    """Name the file in errors about its content; errors that name a remedy stay as they are.

    Arguments:
        name: The name of the file.

    Example:
        >>> with explain_damage("train.bin"):
        ...     int("12a")
        Traceback (most recent call last):
        ...
        cayley.lab.errors.DataError: could not read train.bin: invalid literal for int() with base
        10: '12a'. If the file is damaged, fetch it again
    """
    try:
        yield
    except (LabError, MemoryError):
        raise
    # readers of formats fail in as many ways as there are formats
    except Exception as error:
        reason = str(error) if len(str(error)) > 10 else repr(error)
        raise DataError(
            f"could not read {name}: {reason}. If the file is damaged, fetch it again"
        ) from error


@dataclass(frozen=True)
class Resource:
    """A file of a data set.

    Attributes:
        name: The name of the uncompressed file.
        url: Where it is published, possibly compressed; empty if it cannot be downloaded.
        sha256: The sha256 of the uncompressed content; empty if not known.
        hint: How to get it if it cannot be downloaded, such as the licence that it needs.
    """

    name: str
    url: str = ""
    sha256: str = ""
    hint: str = ""

    def verify(self, content: bytes, where: str) -> None:
        """Raise unless the content is the published one."""
        found = hashlib.sha256(content).hexdigest()
        if self.sha256 and found != self.sha256:
            raise DataError(
                f"{where}: expected the sha256 {self.sha256}, got {found}: the file is damaged or "
                "another version. Fetch it again, or use it as it is with check=False or "
                "--unchecked"
            )


@dataclass(frozen=True)
class Source:
    """Where the files of a task are.

    Arguments:
        folder: The user's folder, searched down to three levels below it; for a text of the
            user's own, it may be the file itself.
        download: Whether files that are missing may be fetched from their official place.
        check: Whether contents must have the published checksums.

    Example:
        >>> try:
        ...     Source().read(Resource("train.bin", hint="It is sold by the LDC."))
        ... except DataError as error:
        ...     print(error)
        expected a folder with the file train.bin, got none: give one with Source(folder) or on the
        command line with --data. It is sold by the LDC.
    """

    folder: Path | None = None
    download: bool = False
    check: bool = True

    def __post_init__(self) -> None:
        if self.folder is not None:
            # settings files and command lines give text
            object.__setattr__(self, "folder", Path(self.folder))

    def path(self, resource: Resource) -> Path:
        """The path of a file, which may be compressed; it is downloaded if allowed."""
        found = self._search(resource.name)
        if found is not None:
            return found
        if self.download and resource.url:
            return self._fetch(resource)
        remedy = resource.hint
        if resource.url:
            remedy = (
                f"Get it from {resource.url} and put it there, or allow the download with "
                f"download=True or --download. {resource.hint}"
            )
        if self.folder is None:
            raise DataError(
                f"expected a folder with the file {resource.name}, got none: give one with "
                f"Source(folder) or on the command line with --data. {remedy}".rstrip()
            )
        got = "none" if self.folder.exists() else "no such folder"
        raise DataError(
            f"expected the file {resource.name} (or .gz, .xz) in {self.folder} or up to {DEPTH} "
            f"folders below it, got {got}. {remedy}".rstrip()
        )

    def has(self, resource: Resource) -> bool:
        """Whether the file is there."""
        return self._search(resource.name) is not None

    def find(self, resources: Iterable[Resource]) -> None:
        """Raise if a file is missing that may not be downloaded."""
        for resource in resources:
            if self.folder is None or not (self.download and resource.url):
                self.path(resource)

    def read(self, resource: Resource) -> bytes:
        """The uncompressed content of a file, checked."""
        path = self.path(resource)
        content = _uncompressed(path)
        if self.check:
            resource.verify(content, str(path))
        return content

    def _search(self, name: str) -> Path | None:
        if self.folder is None:
            return None
        for depth in range(DEPTH + 1):
            for ending in OPENERS:
                found = sorted(self.folder.glob("*/" * depth + name + ending))
                if found:
                    return found[0]
        return None

    def _fetch(self, resource: Resource) -> Path:
        if self.folder is None:
            raise DataError(
                f"expected a folder to download {resource.name} into, got none: give one with "
                "Source(folder, download=True) or on the command line with --data"
            )
        ending = Path(resource.url).suffix
        target = self.folder / (resource.name + (ending if ending in (".gz", ".xz") else ""))
        # renamed only when complete, since another process may be looking for it
        part = target.with_name(f"{target.name}.{os.getpid()}.part")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with urlopen(resource.url, timeout=60) as answer:
                part.write_bytes(answer.read())
            if self.check:
                resource.verify(_uncompressed(part, ending), resource.url)
            part.replace(target)
        except (OSError, HTTPException) as error:
            raise DataError(
                f"could not download {resource.name} from {resource.url} into {self.folder}: "
                f"{error}. Without a network, fetch it elsewhere and put it there"
            ) from error
        finally:
            if part.exists():
                part.unlink()
        return target


NOWHERE = Source()


def _uncompressed(path: Path, ending: str | None = None) -> bytes:
    ending = path.suffix if ending is None else ending
    with explain_damage(str(path)):
        return OPENERS.get(ending, bytes)(path.read_bytes())


def find_files(folder: Path, endings: Iterable[str]) -> dict[str, Callable[[], bytes]]:
    """The files below a folder and inside its zip archives, by name, in order.

    Arguments:
        folder: A folder, or a zip archive.
        endings: The endings of the files, in lower case, such as ``".wav"``.

    Returns:
        For each path relative to the folder or archive, with ``/``, a function that reads the file.

    Example:
        >>> find_files(Path(__file__).parent, [".toml.of.nobody"])
        {}
    """
    chosen = tuple(endings)
    found: dict[str, Callable[[], bytes]] = {}
    if not folder.exists():
        raise DataError(f"expected a folder or a zip archive, got {folder}, which does not exist")
    archives = [folder] if folder.is_file() else sorted(folder.rglob("*.zip"))
    for archive in archives:
        with explain_damage(str(archive)):
            # it stays open as long as there are functions that read from it
            opened = zipfile.ZipFile(archive)
        for name in opened.namelist():
            if name.lower().endswith(chosen):
                found[name] = partial(_member, opened, name)
    if folder.is_dir():
        for path in folder.rglob("*"):
            if path.name.lower().endswith(chosen):
                found[path.relative_to(folder).as_posix()] = path.read_bytes
    return dict(sorted(found.items()))


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    with explain_damage(f"{name} in {archive.filename}"):
        return archive.read(name)
