import io
from pathlib import Path
from zipfile import ZipFile

from cayley.lab.commands.parcels import pack, unpack


def test_a_folder_comes_back_as_a_whole(tmp_path: Path) -> None:
    folder, other = tmp_path / "run", tmp_path / "deep" / "other"
    (folder / "tensorboard").mkdir(parents=True)
    for name, content in {"result.json": b"{}", "lock": b"me", "tensorboard/a": b"x"}.items():
        (folder / name).write_bytes(content)
    unpack(pack(folder), other)
    found = {str(path.relative_to(other)) for path in other.rglob("*") if path.is_file()}
    # the lock is of the process that holds the folder
    assert found == {"result.json", "tensorboard/a"}
    # what is not in it goes
    (other / "stale").touch()
    unpack(pack(folder), other)
    assert not (other / "stale").exists()
    assert [path.name for path in other.parent.iterdir()] == ["other"]


def test_no_folder_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    unpack(pack(tmp_path / "none"), tmp_path / "run")
    assert (tmp_path / "run").exists()
    unpack(pack(tmp_path / "none"), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_nothing_is_written_outside_the_folder(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with ZipFile(buffer, "w") as archive:
        for name in ("../above", f"{tmp_path}/absolute", "inside"):
            archive.writestr(name, "x")
    unpack(buffer.getvalue(), tmp_path / "deep" / "run")
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) == 3
    assert all(path.is_relative_to(tmp_path / "deep" / "run") for path in written)
