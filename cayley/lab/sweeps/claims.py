"""Trials held by workers, and trials whose worker has died.

A worker locks a file in the run folder of its trial, and counts up a number, its heartbeat, in the
storage. Both end with the worker. A trial of this machine is abandoned if the lock is free; a trial
of another machine, if in addition its heartbeat has stopped for a while.
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
# a worker on another machine is considered dead after so long without a heartbeat
STALE_SECONDS = 150.0


@dataclass(frozen=True)
class Owner:
    """The process that works on a trial.

    Attributes:
        id: A unique id of the claim.
        host: The name of its machine.
        process: Its process id.
        folder: The run folder, as a path on that machine.
    """

    id: str
    host: str
    process: int
    folder: str

    @classmethod
    def here(cls, folder: Path) -> "Owner":
        """This process as the owner of a trial."""
        place = str(folder.resolve())
        return cls(uuid.uuid4().hex, socket.gethostname(), os.getpid(), place)


class Claim:
    """A trial that this process works on, shown by a locked file in its folder and a heartbeat.

    Arguments:
        owner: This process.
        storage: The storage that the heartbeat is written to.
        trial: The id of the trial in the storage.
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
                f"expected {folder} to be free, but another process is using it: choose another "
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
                # the storage may answer again next time, or the trial is over, which the worker
                # notices itself
                continue


class Watch:
    """Checks whether the workers of trials are still alive."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Any, float]] = {}

    def is_left(self, trial: "FrozenTrial") -> bool:
        """Whether nobody works on a running trial; call only while holding the storage.

        Arguments:
            trial: The trial, as it is in the storage now.
        """
        content = trial.user_attrs.get(OWNER)
        if content is None:
            # its worker was killed before it could register
            return True
        owner = Owner(**content)
        id, locked = _look(owner)
        if owner.host == socket.gethostname():
            # whoever holds the lock, even if it is only about to take the trial over
            return not locked
        if locked and id == owner.id:
            return False
        # the folder is not visible here, or its locks are not visible to other machines
        return self._is_silent(owner, trial.user_attrs.get(BEAT))

    def _is_silent(self, owner: Owner, beat: Any) -> bool:
        """Whether the heartbeat of a claim has stopped, by the clock of this machine."""
        now = time.monotonic()
        before, since = self._seen.get(owner.id, (None, now))
        if owner.id not in self._seen or before != beat:
            self._seen[owner.id] = beat, now
            return False
        return now - since > STALE_SECONDS


def _look(owner: Owner) -> tuple[str, bool]:
    """The id of the claim in the file of a folder, and whether a process holds its lock."""
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
