"""A MariaDB or MySQL server of its own for a test."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from private_server import find_user, make_folder, run_server

__all__ = ["serve"]


def find_program(*names: str) -> str | None:
    """The first of some programs that is installed."""
    # servers are where only root looks
    places = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"))
    return next(filter(None, (shutil.which(name, path=places) for name in names)), None)


@contextmanager
def serve() -> Iterator[str]:
    """The address of a database that is there as long as this lasts."""
    pytest.importorskip("pymysql", reason="no driver of MySQL: pip install pymysql")
    server = find_program("mariadbd", "mysqld")
    ask = find_program("mariadb-admin", "mysqladmin")
    if server is None or ask is None:
        pytest.skip("no MariaDB or MySQL: apt-get install mariadb-server")
    user = find_user()
    with make_folder(user) as folder:
        files = [f"--datadir={folder / 'data'}", "--innodb-flush-method=nosync"]
        files += ["--innodb-log-file-size=8M", "--innodb-buffer-pool-size=8M"]
        if maker := find_program("mariadb-install-db"):
            make = [maker, "--no-defaults", "--auth-root-authentication-method=normal", *files]
        else:
            make = [server, "--no-defaults", "--initialize-insecure", *files]
        socket = folder / "socket"
        setup = folder / "setup.sql"
        setup.write_text("CREATE DATABASE cayley;\n")
        private = [f"--socket={socket}", "--skip-networking", f"--pid-file={folder / 'pid'}"]
        with run_server(
            folder,
            user,
            make=make,
            serve=[server, "--no-defaults", *files, *private, f"--init-file={setup}"],
            ask=[ask, "--no-defaults", f"--socket={socket}", "--user=root", "ping"],
        ):
            yield f"mysql+pymysql://root@/cayley?unix_socket={socket}"
