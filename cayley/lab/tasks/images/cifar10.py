"""CIFAR-10, each image as one vector."""

import io
import tarfile
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from cayley.lab.errors import DataError
from cayley.lab.settings import Range
from cayley.lab.tasks.batch import Split
from cayley.lab.tasks.frequencies import count_classes
from cayley.lab.tasks.images.images import CLASSES, Images
from cayley.lab.tasks.sources import NOWHERE, Resource, Source, explain_damage
from cayley.lab.tasks.task import Answers, Reads

__all__ = ["CIFAR10", "read_records"]

ARCHIVE = Resource("cifar-10-binary.tar", "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz")
FILES = {
    "train": [f"data_batch_{number}.bin" for number in range(1, 6)],
    "test": ["test_batch.bin"],
}
# The first images of each split in the same format, for those who do not have all. They are read
# only where a part is asked for, so that nobody takes it for the whole.
SLICE = (
    Resource(
        "train_first1000.bin",
        sha256="1c5f9ea0fc1111d586f29115efd3db25eecf7db27b29aaebbe84721446b052cc",
    ),
    Resource(
        "test_first500.bin",
        sha256="ba456e78b292ef2a6e366d304e587255370906951905b2e06af8e9f54f412f62",
    ),
)
RECORD = 1 + 3 * 32 * 32


def read_records(content: bytes) -> tuple[Tensor, Tensor]:
    """Images (N, 3072) and labels (N) in the binary format of CIFAR-10.

    Example:
        >>> images, labels = read_records(bytes([7] + [0] * 3072))
        >>> images.shape, labels
        (torch.Size([1, 3072]), tensor([7]))
    """
    if not content or len(content) % RECORD:
        raise DataError(
            f"expected records of {RECORD} bytes, got {len(content)} bytes: fetch the binary "
            f"version, {ARCHIVE.url}"
        )
    records = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(-1, RECORD)
    return records[:, 1:], records[:, 0].long()


@dataclass(frozen=True)
class CIFAR10(Images):
    """Small colour photographs, each as a vector of 3072 numbers.

    References:
        Learning Multiple Layers of Features from Tiny Images, Krizhevsky, 2009.

    Arguments:
        validation: How many images, from the beginning of the training files, are for validation.
        train: How many images to take from the beginning of the training files; 0 for all.
        test: How many to take from the beginning of the test file; 0 for all.
        shuffle: Whether each epoch of training has an order of its own.
        source: Where the files are: the archive of the binary version, or its unpacked files. If
            ``train`` and ``test`` ask for a part, ``train_first1000.bin`` and
            ``test_first500.bin`` will do.
        invented: Whether to use random images instead of files.

    Example:
        >>> next(CIFAR10(invented=True).batches("train", 6)).input.shape
        torch.Size([6, 3072])
    """

    validation: Annotated[int, Range(0, 49_999)] = 0
    train: Annotated[int, Range(0, 50_000)] = 0
    test: Annotated[int, Range(0, 10_000)] = 0
    shuffle: bool = True
    source: Source = NOWHERE
    invented: bool = False

    reads: ClassVar[Reads] = "rows"
    answers: ClassVar[Answers] = "rows"

    @property
    def input_size(self) -> int:
        """32 × 32 pixels of three colours."""
        return RECORD - 1

    @property
    def needs(self) -> tuple[Resource, ...]:
        """The archive."""
        return (ARCHIVE,)

    def find_data(self) -> None:
        """Look for the unpacked files or the archive, or for those of a part."""
        if not (self.invented or self._unpacked or self._sliced):
            self.source.find(self.needs)

    @property
    def _unpacked(self) -> bool:
        return self.source.has(Resource(FILES["test"][0]))

    @property
    def _sliced(self) -> bool:
        """Whether a part is asked for, and no more than a part is there."""
        asked = bool(self.train and self.test) and not self.source.has(ARCHIVE)
        return asked and all(map(self.source.has, SLICE))

    @property
    def invented_pixels(self) -> int:
        """As many as in real images."""
        return RECORD - 1

    def read(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The unpacked files if they exist, else those of the archive, or of a part."""
        if not self._unpacked and self._sliced:
            read = [read_records(self.source.read(resource)) for resource in SLICE]
        else:
            read = self._read_all()
        (images, labels), (test_images, test_labels) = (
            _take(*one, count, split)
            for one, count, split in zip(read, (self.train, self.test), FILES, strict=True)
        )
        return images, labels, test_images, test_labels

    def _read_all(self) -> list[tuple[Tensor, Tensor]]:
        archive = None if self._unpacked else self.source.read(ARCHIVE)
        read = []
        for names in FILES.values():
            if archive is None:
                content = b"".join(self.source.read(Resource(name)) for name in names)
            else:
                content = _from_tar(archive, names)
            images, labels = read_records(content)
            expected = len(names) * 10_000
            if (
                self.source.check
                and count_classes(labels, CLASSES).tolist() != [expected // CLASSES] * CLASSES
            ):
                raise DataError(
                    f"expected {expected // CLASSES} images of each class in {names}, got "
                    f"{count_classes(labels, CLASSES).tolist()}: fetch the files again, or use "
                    "them as they are with check=False or --unchecked"
                )
            read.append((images, labels))
        return read

    def examples(
        self, split: Split, index: Tensor, seed: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, None]:
        """Input (B, 3072), red, green and blue planes, and target (B)."""
        return *self.chosen(split, index, dtype), None

    def tiny(self) -> "CIFAR10":
        """Random images."""
        return replace(self, invented=True)


def _take(images: Tensor, labels: Tensor, count: int, split: str) -> tuple[Tensor, Tensor]:
    """The first of images and labels; all for a count of 0."""
    if count > len(labels):
        raise DataError(
            f"expected {count} {split} images, got {len(labels)}: ask for fewer with "
            f"task.{split}, or fetch all, {ARCHIVE.url}"
        )
    return images[: count or None], labels[: count or None]


def _from_tar(archive: bytes, names: list[str]) -> bytes:
    with (
        explain_damage(ARCHIVE.name),
        tarfile.open(fileobj=io.BytesIO(archive)) as opened,
    ):
        paths = {path.rpartition("/")[2]: path for path in opened.getnames()}
        missing = [name for name in names if name not in paths]
        if missing:
            raise DataError(f"expected {missing} in {ARCHIVE.name}.gz: fetch it again")
        files = [opened.extractfile(paths[name]) for name in names]
        return b"".join(file.read() for file in files if file is not None)
