"""Storages of studies: a journal, SQLite, PostgreSQL or MySQL, and the lock of their studies.

Optuna's own lock of a journal is a file that outlives a killed process; the locks here are released
when the process that holds them ends.
"""

import fcntl
import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from cayley.lab.errors import LabError, RecipeError, RunError
from cayley.lab.sweeps.engine import check_optuna

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

__all__ = ["Storage", "default_url", "explain_storage", "open_storage"]

JOURNAL = "journal://"
# the key of the lock, which no other program uses
KEY = int.from_bytes(hashlib.sha256(b"cayley sweep").digest()[:7], "big")
# each worker locks the whole file of SQLite for a moment, so others may have to wait
SQLITE_SECONDS = 60.0


class _Lock(ABC):
    """A lock that one process holds at a time; it is released when the process ends."""

    @abstractmethod
    def hold(self) -> AbstractContextManager[None]:
        """Context that waits for the lock, holds it, and releases it."""


class _FileLock(_Lock):
    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def hold(self) -> Iterator[None]:
        file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)


class _JournalLock:
    """A lock of a journal with Optuna's interface, released when the process ends.

    Arguments:
        path: The path of the journal.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = _FileLock(Path(f"{path}.append"))
        self.held: list[AbstractContextManager[None]] = []

    def acquire(self) -> bool:
        """Wait for the lock, and repair the journal so that a line can be added."""
        held = self.lock.hold()
        held.__enter__()
        self.held.append(held)
        _mend(self.path)
        return True

    def release(self) -> None:
        """Release the lock."""
        self.held.pop().__exit__(None, None, None)


class _ServerLock(_Lock):
    """A lock of a database server, which releases it when the connection ends.

    Arguments:
        url: The address of the database.
        name: The kind of database.
    """

    TAKE: ClassVar = {
        "postgresql": f"SELECT pg_advisory_lock({KEY})",
        "mysql": f"SELECT GET_LOCK('cayley{KEY}', {10**6})",
    }
    LEAVE: ClassVar = {
        "postgresql": f"SELECT pg_advisory_unlock({KEY})",
        "mysql": f"SELECT RELEASE_LOCK('cayley{KEY}')",
    }

    def __init__(self, url: str, name: str) -> None:
        import sqlalchemy

        self.name = name
        self.take, self.leave = (sqlalchemy.text(words[name]) for words in (self.TAKE, self.LEAVE))
        # a separate connection that is closed after use
        self.engine = sqlalchemy.create_engine(
            url, poolclass=sqlalchemy.pool.NullPool, isolation_level="AUTOCOMMIT"
        )

    @contextmanager
    def hold(self) -> Iterator[None]:
        with self.engine.connect() as connection:
            got = connection.execute(self.take).scalar()
            # PostgreSQL waits until it has the lock, and returns nothing
            if self.name == "mysql" and got != 1:
                raise RunError(
                    f"expected a lock of the database server, got {got}: another worker holds it, "
                    "or the server ended the wait; try again"
                )
            try:
                yield
            finally:
                connection.execute(self.leave)


class Storage:
    """A storage of Optuna, and the lock under which trials are assigned.

    Arguments:
        url: ``journal:///path``, ``sqlite:///path``, ``postgresql+psycopg://…`` or ``mysql…``.

    Attributes:
        url: The address without the password.
        optuna: Optuna's storage object.
    """

    def __init__(self, url: str) -> None:
        check_optuna()
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        self.url = url
        self.optuna: BaseStorage
        if url.startswith(JOURNAL):
            path = Path(url.removeprefix(JOURNAL))
            if not path.name:
                raise RecipeError(f"--storage: expected journal:///path/of/a/file, got {url!r}")
            _make_folder(path)
            self._lock: _Lock = _FileLock(Path(f"{path}.claims"))
            with explain_storage(url):
                lock: Any = _JournalLock(path)
                backend = JournalFileBackend(str(path), lock_obj=lock)
                self.optuna = JournalStorage(backend)
            return
        name, place, self.url = _parse(url)
        if name == "sqlite":
            if not place:
                raise RecipeError(f"--storage: expected sqlite:///path/of/a/file, got {url!r}")
            _make_folder(Path(place))
            self._lock = _FileLock(Path(f"{place}.claims"))
        else:
            with explain_storage(self.url):
                self._lock = _ServerLock(url, name)
        with explain_storage(self.url), self._lock.hold():
            # two processes that create the tables of an empty database at once would conflict
            self.optuna = _database(url, name)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Context in which this is the only worker that reads and changes the studies."""
        with explain_storage(self.url), self._lock.hold():
            yield


def open_storage(url: str) -> Storage:
    """Open a storage by its address.

    Example:
        >>> open_storage("redis://host")
        Traceback (most recent call last):
        ...
        cayley.lab.errors.RecipeError: --storage: expected journal:///path, sqlite:///path,
        postgresql+psycopg://user@host/database or mysql+driver://user@host/database, got
        'redis://host'
    """
    return Storage(url)


def default_url(output: Path) -> str:
    """The address of a journal beside the runs.

    Example:
        >>> default_url(Path("/data/runs"))
        'journal:///data/runs/sweeps.journal'
    """
    return f"{JOURNAL}{output.resolve() / 'sweeps.journal'}"


@contextmanager
def explain_storage(url: str) -> Iterator[None]:
    """Context that turns the errors of a storage into an error that names it.

    Arguments:
        url: The address without a password.
    """
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import DBAPIError

    try:
        yield
    except (StorageInternalError, DBAPIError, OSError) as error:
        # Optuna hides the error of SQLAlchemy, which hides that of the driver behind a statement
        found = error.__cause__ or error
        reason = " ".join(str(getattr(found, "orig", None) or found).split())
        raise RunError(
            f"could not use the storage {url}: {reason}. The same command continues trials from "
            "their checkpoints"
        ) from error


def _parse(url: str) -> tuple[str, str, str]:
    """The kind of a database, its name, and its address without a password."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    try:
        parsed = make_url(url)
        shown = parsed.render_as_string()
    except ArgumentError:
        parsed, shown = None, url
    if parsed is None or parsed.get_backend_name() not in ("sqlite", "postgresql", "mysql"):
        raise RecipeError(
            "--storage: expected journal:///path, sqlite:///path, "
            "postgresql+psycopg://user@host/database or mysql+driver://user@host/database, got "
            f"{shown!r}"
        )
    try:
        parsed.get_dialect().import_dbapi()
    except (ImportError, NoSuchModuleError) as error:
        if parsed.get_backend_name() == "postgresql":
            hint = "write postgresql+psycopg://…, whose driver pip install 'cayley[sweep]' has"
        else:
            hint = "pip install pymysql, and write mysql+pymysql://…"
        raise LabError(
            f"--storage: expected a driver for the database ({error}): {hint}"
        ) from error
    return parsed.get_backend_name(), parsed.database or "", shown


def _database(url: str, name: str) -> "BaseStorage":
    from optuna.storages import RDBStorage

    options: dict[str, Any] = {"connect_args": {"timeout": SQLITE_SECONDS}}
    return RDBStorage(url, engine_kwargs=options if name == "sqlite" else {"pool_pre_ping": True})


def _mend(path: Path) -> None:
    """Cut off an incomplete last line, whose writer was killed: Optuna could not read it."""
    if not path.exists():
        return
    with open(path, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if not size:
            return
        file.seek(size - 1)
        if file.read(1) != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)


def _make_folder(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"could not make {path.parent}: {error.strerror}") from error
