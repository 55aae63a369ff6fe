import io
import lzma
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch

from cayley.lab.errors import DataError
from cayley.lab.tasks import Position
from cayley.lab.tasks.images import CIFAR10
from cayley.lab.tasks.images.cifar10 import read_records
from cayley.lab.tasks.sources import Source


def record(label: int) -> bytes:
    return bytes([label]) + bytes([label, 10 + label, 20 + label]) * 1024


@pytest.fixture
def files() -> dict[str, bytes]:
    names = [f"data_batch_{number}.bin" for number in range(1, 6)]
    return {
        **{name: record(number) + record(number + 1) for number, name in enumerate(names)},
        "test_batch.bin": record(9),
    }


def test_records() -> None:
    images, labels = read_records(record(3) + record(7))
    assert labels.tolist() == [3, 7]
    assert images[1, :4].tolist() == [7, 17, 27, 7]
    for content in (b"", record(1)[:-1]):
        with pytest.raises(DataError, match="expected records of 3073 bytes"):
            read_records(content)


def test_unpacked_files_and_the_archive_are_the_same(
    tmp_path: Path, files: dict[str, bytes]
) -> None:
    loose, packed = tmp_path / "loose" / "cifar-10-batches-bin", tmp_path / "packed"
    loose.mkdir(parents=True)
    packed.mkdir()
    with tarfile.open(packed / "cifar-10-binary.tar.gz", "w:gz") as archive:
        for name, content in files.items():
            (loose / name).write_bytes(content)
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    tasks = [
        CIFAR10(source=Source(folder, check=False), shuffle=False)
        for folder in (loose.parent, packed)
    ]
    for task in tasks:
        batch = task.batch("train", 10, Position())
        assert batch.target.tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
        assert task.size("test") == 1
    one, other = (task.batch("train", 10, Position()) for task in tasks)
    torch.testing.assert_close(one.input, other.input, rtol=0, atol=0)
    with pytest.raises(DataError, match=r"expected 5000 images of each class.*--unchecked"):
        CIFAR10(source=Source(packed)).size("train")


@pytest.mark.parametrize("length", [0, 100, 700])
def test_an_archive_that_is_cut_is_named(
    length: int, tmp_path: Path, files: dict[str, bytes]
) -> None:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, one in files.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(one)
            archive.addfile(member, io.BytesIO(one))
    (tmp_path / "cifar-10-binary.tar").write_bytes(content.getvalue()[:length])
    with pytest.raises(DataError, match=r"could not read cifar-10-binary\.tar|data_batch"):
        CIFAR10(source=Source(tmp_path, check=False)).size("train")


def test_an_incomplete_archive_is_named(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz"):
        pass
    with pytest.raises(DataError, match=r"data_batch_1\.bin"):
        CIFAR10(source=Source(tmp_path)).size("train")


def write_unpacked(folder: Path, files: dict[str, bytes]) -> Source:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return Source(folder, check=False)


@pytest.mark.parametrize(("train", "test"), [(1, 1), (3, 0), (0, 1), (10, 1)])
def test_the_first_of_each_split(
    train: int, test: int, tmp_path: Path, files: dict[str, bytes]
) -> None:
    source = write_unpacked(tmp_path, files)
    task = CIFAR10(source=source, train=train, test=test, shuffle=False)
    first = [0, 1, 1, 2, 2, 3, 3, 4, 4, 5][: train or 10]
    assert task.batch("train", 10, Position()).target.tolist() == first
    assert task.size("test") == 1


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"train": 11}, r"expected 11 train images, got 10: ask for fewer with task\.train, or"),
        ({"test": 2}, r"expected 2 test images, got 1: ask for fewer with task\.test, or fetch"),
    ],
)
def test_more_images_than_there_are(
    asked: dict[str, Any], message: str, tmp_path: Path, files: dict[str, bytes]
) -> None:
    task = CIFAR10(source=write_unpacked(tmp_path, files), **asked)
    with pytest.raises(DataError, match=message):
        task.size("train")


@pytest.fixture
def sliced(tmp_path: Path) -> Source:
    """A part of the images in two files, as they are published nowhere."""
    train = lzma.compress(record(1) + record(2))
    (tmp_path / "train_first1000.bin.xz").write_bytes(train)
    (tmp_path / "test_first500.bin").write_bytes(record(3))
    return Source(tmp_path, check=False)


def test_a_part_is_read_where_it_is_asked_for(sliced: Source) -> None:
    task = CIFAR10(source=sliced, train=2, test=1)
    task.find_data()
    assert (task.size("train"), task.size("test")) == (2, 1)
    with pytest.raises(DataError, match="expected the sha256 1c5f9ea0"):
        CIFAR10(source=Source(sliced.folder), train=2, test=1).size("train")


@pytest.mark.parametrize("asked", [{}, {"train": 2}, {"test": 1}])
def test_a_part_is_never_taken_for_all(asked: dict[str, Any], sliced: Source) -> None:
    task = CIFAR10(source=sliced, **asked)
    with pytest.raises(DataError, match=r"expected the file cifar-10-binary\.tar"):
        task.find_data()
    with pytest.raises(DataError, match=r"expected the file cifar-10-binary\.tar"):
        task.size("train")


def test_all_come_before_a_part(tmp_path: Path, files: dict[str, bytes], sliced: Source) -> None:
    source = write_unpacked(tmp_path, files)
    task = CIFAR10(source=source, train=2, test=1, shuffle=False)
    assert task.batch("test", 1, Position()).target.tolist() == [9]


def test_real_images(source: Source) -> None:
    """The first thousand of the training images."""
    task = CIFAR10(source=source, train=1000, test=500, shuffle=False)
    assert (task.size("train"), task.size("test")) == (1000, 500)
    batch: Any = task.batch("train", 1000, Position())
    images = batch.input.view(1000, 3, 1024)
    # close to the published means of all images: 0.4914, 0.4822, 0.4465
    torch.testing.assert_close(
        images.mean((0, 2)), torch.tensor([0.4914, 0.4822, 0.4465]), rtol=0, atol=0.02
    )
