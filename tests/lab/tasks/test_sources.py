import gzip
import hashlib
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cayley.lab.errors import DataError, RecipeError
from cayley.lab.tasks.sources import Resource, Source, explain_damage, find_files

CONTENT = b"some bytes\n" * 100
SUM = hashlib.sha256(CONTENT).hexdigest()


@pytest.mark.parametrize("below", ["", "a", "a/b", "a/b/c"])
@pytest.mark.parametrize(
    ("ending", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)]
)
def test_a_file_is_found_and_unpacked(
    tmp_path: Path, below: str, ending: str, pack: Callable[[bytes], bytes]
) -> None:
    folder = tmp_path / below
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"x.bin{ending}").write_bytes(pack(CONTENT))
    source = Source(tmp_path)
    resource = Resource("x.bin", sha256=SUM)
    assert source.has(resource)
    assert source.read(resource) == CONTENT


def test_too_deep_is_not_found(tmp_path: Path) -> None:
    folder = tmp_path / "a/b/c/d"
    folder.mkdir(parents=True)
    (folder / "x.bin").write_bytes(CONTENT)
    assert not Source(tmp_path).has(Resource("x.bin"))


def test_a_missing_file_tells_where_to_get_it(tmp_path: Path) -> None:
    resource = Resource("x.bin", "https://example.org/x.bin.gz", hint="It is large.")
    with pytest.raises(DataError, match=r"https://example.org/x.bin.gz.*--download.*It is large."):
        Source(tmp_path).read(resource)
    with pytest.raises(DataError, match="expected a folder"):
        Source().read(resource)


def test_a_wrong_checksum_is_refused_unless_allowed(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(CONTENT + b"!")
    resource = Resource("x.bin", sha256=SUM)
    with pytest.raises(DataError, match=f"expected the sha256 {SUM}.*check=False or --unchecked"):
        Source(tmp_path).read(resource)
    assert Source(tmp_path, check=False).read(resource) == CONTENT + b"!"


@pytest.mark.parametrize("ending", [".gz", ".xz"])
def test_a_damaged_archive_is_named(tmp_path: Path, ending: str) -> None:
    pack = gzip.compress if ending == ".gz" else lzma.compress
    (tmp_path / f"x.bin{ending}").write_bytes(pack(CONTENT)[:-9])
    with pytest.raises(DataError, match=f"could not read .*x.bin{ending}"):
        Source(tmp_path).read(Resource("x.bin"))


def test_download(tmp_path: Path) -> None:
    """From a file address: the same path as for the web."""
    published = tmp_path / "site" / "published.gz"
    published.parent.mkdir()
    published.write_bytes(gzip.compress(CONTENT))
    folder = tmp_path / "data"
    resource = Resource("x.bin", published.as_uri(), SUM)
    with pytest.raises(DataError, match="allow the download"):
        Source(folder).read(resource)
    assert Source(folder, download=True).read(resource) == CONTENT
    assert [path.name for path in folder.iterdir()] == ["x.bin.gz"]
    published.unlink()
    assert Source(folder).read(resource) == CONTENT


def test_a_bad_download_leaves_nothing_behind(tmp_path: Path) -> None:
    published = tmp_path / "published.bin"
    published.write_bytes(CONTENT + b"!")
    folder = tmp_path / "data"
    with pytest.raises(DataError, match="expected the sha256"):
        Source(folder, download=True).read(Resource("x.bin", published.as_uri(), SUM))
    assert not list(folder.iterdir())


def test_offline_is_named(tmp_path: Path) -> None:
    # port 9 of this machine: nobody answers, and nothing leaves it
    resource = Resource("x.bin", "http://127.0.0.1:9/x.bin")
    with pytest.raises(DataError, match=r"could not download x\.bin.*Without a network"):
        Source(tmp_path, download=True).read(resource)
    with pytest.raises(DataError, match="expected a folder to download"):
        Source(download=True).read(resource)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "published").write_bytes(CONTENT)
    resource = Resource("x.bin", (tmp_path / "published").as_uri())
    with pytest.raises(DataError, match=r"could not download x\.bin"):
        Source(tmp_path / "file" / "data", download=True).read(resource)


def test_a_folder_may_be_text(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(CONTENT)
    source = Source(str(tmp_path))  # pyrefly: ignore[bad-argument-type]
    assert source == Source(tmp_path)
    assert source.read(Resource("x.bin")) == CONTENT


def test_members_of_folders_and_archives(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "two.WAV").write_bytes(b"2")
    (tmp_path / "b" / "notes.txt").write_bytes(b"no")
    with zipfile.ZipFile(tmp_path / "more.zip", "w") as archive:
        archive.writestr("a/one.wav", b"1")
        archive.writestr("a/notes.txt", b"no")
    found = find_files(tmp_path, [".wav"])
    assert {name: read() for name, read in found.items()} == {"a/one.wav": b"1", "b/two.WAV": b"2"}
    assert list(find_files(tmp_path / "more.zip", [".wav"])) == ["a/one.wav"]
    with pytest.raises(DataError, match="does not exist"):
        find_files(tmp_path / "nowhere", [".wav"])


@pytest.mark.parametrize("length", [0, 3, 60, 150])
def test_a_zip_archive_that_is_cut_is_named(tmp_path: Path, length: int) -> None:
    with zipfile.ZipFile(tmp_path / "more.zip", "w") as archive:
        archive.writestr("a/one.wav", CONTENT)
    (tmp_path / "more.zip").write_bytes((tmp_path / "more.zip").read_bytes()[:length])
    with pytest.raises(DataError, match=r"could not read .*more\.zip.*fetch it again"):
        find_files(tmp_path, [".wav"])


def test_a_member_that_is_damaged_is_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "more.zip", "w") as archive:
        archive.writestr("a/one.wav", CONTENT)
    content = (tmp_path / "more.zip").read_bytes().replace(b"some", b"same", 1)
    (tmp_path / "more.zip").write_bytes(content)
    read = find_files(tmp_path, [".wav"])["a/one.wav"]
    with pytest.raises(DataError, match=r"could not read a/one\.wav in .*more\.zip: .*CRC"):
        read()


def test_only_what_is_wrong_with_a_file_is_taken_for_damage() -> None:
    for kind in (RecipeError, DataError, MemoryError):
        with pytest.raises(kind, match=r"^other$"), explain_damage("name"):
            raise kind("other")
    message = r"^could not read name: KeyError\('x'\)"
    with pytest.raises(DataError, match=message), explain_damage("name"):
        raise KeyError("x")
