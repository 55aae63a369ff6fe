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


def test_real_images(source: Source, tmp_path: Path) -> None:
    """The first thousand of the training images, standing in for all."""
    assert source.folder is not None
    subset = source.folder / "cifar10_subset"
    train = lzma.decompress((subset / "train_first1000.bin.xz").read_bytes())
    for number in range(5):
        part = train[number * 200 * 3073 : (number + 1) * 200 * 3073]
        (tmp_path / f"data_batch_{number + 1}.bin").write_bytes(part)
    test = (subset / "test_first500.bin.xz").read_bytes()
    (tmp_path / "test_batch.bin.xz").write_bytes(test)
    task = CIFAR10(source=Source(tmp_path, check=False), shuffle=False)
    assert (task.size("train"), task.size("test")) == (1000, 500)
    batch: Any = task.batch("train", 1000, Position())
    images = batch.input.view(1000, 3, 1024)
    # close to the published means of all images: 0.4914, 0.4822, 0.4465
    torch.testing.assert_close(
        images.mean((0, 2)), torch.tensor([0.4914, 0.4822, 0.4465]), rtol=0, atol=0.02
    )
