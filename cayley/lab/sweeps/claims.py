"""Trials held by workers, and trials that a worker has left behind.

A worker locks a file in the run folder of its trial, and counts up a number in the storage. Both
end with the worker: a trial whose folder is seen here is left behind if its lock is free; one of
another machine, if its number has not changed for a while, too.
"""

import fcntl
import json
import os
import socket
import threading
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from cayley.lab.errors import RunError

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

__all__ = ["BEAT", "OWNER", "Claim", "Owner", "Watch"]

# attributes of a trial in the storage
OWNER, BEAT = "worker", "beat"
FILE = "worker"
BEAT_SECONDS = 30.0
# a worker of another machine that has not said anything for so long is gone
STALE_SECONDS = 150.0


@dataclass(frozen=True)
class Owner:
    """Who works on a trial.

    Attributes:
        id: Of the claim; no two have the same.
        host: Its machine.
        process: Its number there.
        folder: Of the run, on that machine.
    """

    id: str
    host: str
    process: int
    folder: str

    @classmethod
    def here(cls, folder: Path) -> "Owner":
        """This process."""
        place = str(folder.resolve())
        return cls(uuid.uuid4().hex, socket.gethostname(), os.getpid(), place)


class Claim:
    """A trial that this process works on: a locked file in its folder, and a number that counts up.

    Arguments:
        owner: This process.
        storage: Where the number is.
        trial: The trial's number inside of the storage.
    """

    def __init__(self, owner: Owner, storage: "BaseStorage", trial: int) -> None:
        self.owner = owner
        self.storage = storage
        self.trial = trial
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        folder = Path(owner.folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(folder / FILE, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise RunError(
                f"could not write {folder}: {error.strerror}: choose another --output"
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            raise RunError(
                f"expected {folder} to be free, but another process works there: choose another "
                "--output or --study"
            ) from error
        os.ftruncate(self._file, 0)
        os.write(self._file, json.dumps(asdict(owner)).encode())

    def __enter__(self) -> "Claim":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        os.close(self._file)

    def _beat(self) -> None:
        from optuna.exceptions import OptunaError

        count = 0
        while not self._over.wait(BEAT_SECONDS):
            count += 1
            try:
                self.storage.set_trial_user_attr(self.trial, BEAT, count)
            except (OptunaError, OSError):
                # a storage that does not answer now may do so next time; that the trial is over,
                # its worker will see
                continue


class Watch:
    """Looks whether the workers of trials are still there."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Any, float]] = {}

    def is_left(self, trial: "FrozenTrial") -> bool:
        """Whether nobody works on a trial that has begun; ask only while the storage is held.

        Arguments:
            trial: As the storage has it now.
        """
        content = trial.user_attrs.get(OWNER)
        if content is None:
            # its worker was killed before it could say who it is
            return True
        owner = Owner(**content)
        id, locked = _look(owner)
        if owner.host == socket.gethostname():
            # whoever may have been about to take it up
            return not locked
        if locked and id == owner.id:
            return False
        # a folder that is not seen from here, or whose locks other machines do not see
        return self._is_silent(owner, trial.user_attrs.get(BEAT))

    def _is_silent(self, owner: Owner, beat: Any) -> bool:
        """Whether the number of a claim has not changed for long, by the clock of this machine."""
        now = time.monotonic()
        before, since = self._seen.get(owner.id, (None, now))
        if owner.id not in self._seen or before != beat:
            self._seen[owner.id] = beat, now
            return False
        return now - since > STALE_SECONDS


def _look(owner: Owner) -> tuple[str, bool]:
    """The claim that the file in a folder names, and whether a process holds it."""
    try:
        file = os.open(Path(owner.folder, FILE), os.O_RDWR)
    except OSError:
        return "", False
    id = ""
    try:
        id = json.loads(os.read(file, 10_000) or b"{}").get("id", "")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return id, True
    finally:
        os.close(file)
    return id, False
