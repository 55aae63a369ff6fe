"""Files are written as a whole."""

import os
from pathlib import Path

import pytest

from cayley.lab.commands.files import write_file
from cayley.lab.errors import RunError


def test_what_was_there_stays_if_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new" / "report.html"
    write_file(path, b"before")

    def fill(self: Path, content: bytes) -> None:
        with open(self, "wb") as file:
            file.write(content[:3])
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as full:
        full.setattr(Path, "write_bytes", fill)
        with pytest.raises(RunError, match="No space left on device: choose another place"):
            write_file(path, b"after")
    assert path.read_bytes() == b"before"
    assert [*path.parent.iterdir()] == [path]
    write_file(path, b"after")
    assert path.read_bytes() == b"after"


def test_links_and_devices_are_written_through(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "target")
    write_file(link, b"content")
    assert link.is_symlink()
    assert (tmp_path / "target").read_bytes() == b"content"
    write_file(Path("/dev/null"), b"content")
    assert not Path("/dev/null").is_file()
