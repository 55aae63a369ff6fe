"""Only what this user has written, whole, is taken from the cache."""

import os
import stat
from pathlib import Path

import pytest

from cayley.disk_cache import cache_folder, load, store
from cayley.kernels.cuda.runtime import nvrtc


def test_folder_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAYLEY_CACHE", "/somewhere")
    assert cache_folder() == Path("/somewhere")
    monkeypatch.setenv("CAYLEY_CACHE", "~/kernels")
    assert cache_folder() == Path.home() / "kernels"
    monkeypatch.delenv("CAYLEY_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_folder() == Path("/caches/cayley")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "cayley"


def test_new_folders_are_private(tmp_path: Path) -> None:
    path = tmp_path / "new" / "kernel"
    store(path, b"code")
    assert load(path) == b"code"
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["kernel"]


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 100])
def test_damaged_files_are_not_taken(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "kernel"
    store(path, b"code")
    path.write_bytes(damage)
    assert load(path) is None
    store(path, b"code")
    assert load(path) == b"code"


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "kernel"
    store(path, b"code")
    whole = path.read_bytes()
    for k in range(len(whole)):
        path.write_bytes(whole[:k] + bytes([whole[k] ^ 1]) + whole[k + 1 :])
        assert load(path) is None


def test_one_kernel_is_not_another(tmp_path: Path) -> None:
    store(tmp_path / "first", b"code")
    os.link(tmp_path / "first", tmp_path / "second")
    assert load(tmp_path / "second") is None


def test_links_are_not_followed(tmp_path: Path) -> None:
    store(tmp_path / "elsewhere" / "kernel", b"code")
    (tmp_path / "kernel").symlink_to(tmp_path / "elsewhere" / "kernel")
    assert load(tmp_path / "kernel") is None
    # and a link is replaced, not written through
    store(tmp_path / "kernel", b"other")
    assert load(tmp_path / "elsewhere" / "kernel") == b"code"
    assert load(tmp_path / "kernel") == b"other"


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_folders_that_others_can_write_to_are_not_used(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "kernel"
    store(path, b"code")
    tmp_path.chmod(mode)
    assert load(path) is None
    with pytest.raises(PermissionError, match="to be writable by you alone"):
        store(path, b"code")
    tmp_path.chmod(0o755)
    path.chmod(0o666)
    assert load(path) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_and_folders_of_other_users_are_not_used(tmp_path: Path) -> None:
    path = tmp_path / "kernel"
    store(path, b"code")
    os.chown(path, 12345, 12345)
    assert load(path) is None
    store(path, b"code")
    os.chown(tmp_path, 12345, 12345)
    assert load(path) is None
    with pytest.raises(PermissionError, match="to be yours, but user 12345 owns it"):
        store(path, b"code")


def test_kernels_are_compiled_where_the_cache_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Library:
        def nvrtcVersion(self, *_: object) -> int:
            return 0

    compiled = []
    monkeypatch.setattr(nvrtc, "library", Library)
    monkeypatch.setattr(nvrtc, "_compile", lambda *_: compiled.append(1) or b"code")
    monkeypatch.setenv("CAYLEY_CACHE", str(tmp_path))
    tmp_path.chmod(0o777)
    with pytest.warns(UserWarning, match="set CAYLEY_CACHE to a folder of your own"):
        assert nvrtc.compile_source("inner", "", "sm_90") == b"code"
    tmp_path.chmod(0o700)
    for _ in range(2):
        assert nvrtc.compile_source("inner", "", "sm_90") == b"code"
    # the damaged file is compiled again and healed
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(b"")
    for _ in range(2):
        assert nvrtc.compile_source("inner", "", "sm_90") == b"code"
    assert len(compiled) == 3
