"""A database server of its own for a test: in a temporary folder, without a port."""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["find_user", "make_folder", "run_server"]

Words = Sequence[str | Path]


def find_user() -> dict[str, Any]:
    """Options of ``subprocess``, with which a server is not root, as which it would not run."""
    if os.getuid():
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


@contextmanager
def make_folder(user: dict[str, Any]) -> Iterator[Path]:
    """A folder of a user, which is there as long as this lasts."""
    # names of sockets must be short, and other users must reach the folder
    folder = Path(tempfile.mkdtemp(prefix="db", dir="/tmp"))
    if user:
        os.chown(folder, user["user"], user["group"])
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def run_server(
    folder: Path, user: dict[str, Any], *, make: Words, serve: Words, ask: Words
) -> Iterator[None]:
    """A server that answers, as long as this lasts.

    Arguments:
        folder: Its folder.
        user: Options of ``subprocess``.
        make: The command that makes the files of an empty database.
        serve: The command of the server.
        ask: A command that succeeds when the server answers.
    """
    options: dict[str, Any] = {"cwd": folder, "env": {"PATH": os.defpath, "LC_ALL": "C"}, **user}
    made = subprocess.run(make, capture_output=True, text=True, **options)
    assert made.returncode == 0, made.stdout + made.stderr
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(serve, stdout=log, stderr=log, **options)
    try:
        while subprocess.run(ask, capture_output=True, **options).returncode:
            assert server.poll() is None, (folder / "log").read_text()
            time.sleep(0.02)
        yield
    finally:
        server.terminate()
        server.wait(30)
