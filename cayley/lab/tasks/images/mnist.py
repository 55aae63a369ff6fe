"""MNIST pixel by pixel: in order, permuted or noisy."""

import math
import struct
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from cayley.lab.errors import DataError
from cayley.lab.settings import Range
from cayley.lab.tasks.batch import Split
from cayley.lab.tasks.counter import key, normal
from cayley.lab.tasks.images.images import Images
from cayley.lab.tasks.resident import Resident
from cayley.lab.tasks.sources import NOWHERE, Resource, Source
from cayley.lab.tasks.task import Answers, Reads

__all__ = ["MNIST", "published_permutation", "read_idx"]

SITE = "https://ossci-datasets.s3.amazonaws.com/mnist/"
FILES = tuple(
    Resource(name, f"{SITE}{name}.gz", sha256)
    for name, sha256 in (
        (
            "train-images-idx3-ubyte",
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        ),
        (
            "train-labels-idx1-ubyte",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
        (
            "t10k-images-idx3-ubyte",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        ),
        (
            "t10k-labels-idx1-ubyte",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    )
)


def published_permutation(n: int = 784) -> Tensor:
    """The order of pixels of permuted MNIST, the same in the published code of five papers.

    Example:
        >>> published_permutation()[:6]
        tensor([319, 576, 323, 107, 355, 716])
    """
    return torch.from_numpy(np.random.RandomState(92916).permutation(n))


def read_idx(content: bytes) -> Tensor:
    """An array in the idx format of MNIST: a magic number, sizes, bytes.

    Example:
        >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 5, 0]))
        tensor([5, 0], dtype=torch.uint8)
    """
    rank = content[3] if len(content) > 3 else 0
    begin = 4 + 4 * rank
    if content[:3] != bytes([0, 0, 8]) or rank == 0 or len(content) < begin:
        raise DataError(
            f"expected an idx file of unsigned bytes, got one of {len(content)} bytes that begins "
            f"{content[:4]}: fetch it again"
        )
    shape = struct.unpack_from(f">{rank}I", content, 4)
    if len(content) - begin != math.prod(shape) or not content[begin:]:
        raise DataError(
            f"expected {math.prod(shape)} bytes of {shape}, at least one, got "
            f"{len(content) - begin}: the file is damaged, fetch it again"
        )
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=begin).view(shape)


@dataclass(frozen=True)
class MNIST(Images):
    """Handwritten digits, one pixel per step; the output after the last step is the class.

    References:
        A Simple Way to Initialize Recurrent Networks of Rectified Linear Units, Le, Jaitly,
        Hinton, 2015, section 4.2.

    Arguments:
        order: The order of the pixels: ``"rows"`` from the top, or ``"permuted"`` by
            :func:`published_permutation`.
        noise: The variance of normal noise, which is part of an image and the same in each epoch.
        validation: How many images, from the beginning of the training file, are for validation.
        shuffle: Whether each epoch of training has an order of its own.
        source: Where the files are.
        invented: Whether to use random images of 49 pixels instead of files.

    Example:
        >>> batch = next(MNIST(invented=True).batches("train", 20))
        >>> batch.input.shape, batch.target.shape
        (torch.Size([49, 20, 1]), torch.Size([20]))
    """

    order: Literal["rows", "permuted"] = "rows"
    noise: Annotated[float, Range(0)] = 0.0
    validation: Annotated[int, Range(0, 59_999)] = 5_000
    shuffle: bool = True
    source: Source = NOWHERE
    invented: bool = False

    reads: ClassVar[Reads] = "features"
    answers: ClassVar[Answers] = "last"

    @property
    def input_size(self) -> int:
        """One pixel."""
        return 1

    @property
    def needs(self) -> tuple[Resource, ...]:
        """The four files of MNIST."""
        return FILES

    def find_data(self) -> None:
        """Look for the four files."""
        if not self.invented:
            self.source.find(FILES)

    @property
    def invented_pixels(self) -> int:
        """7 × 7."""
        return 49

    def read(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The four files."""
        arrays = []
        for resource in FILES:
            content = self.source.read(resource)
            try:
                arrays.append(read_idx(content))
            except DataError as error:
                raise DataError(f"could not read {resource.name}: {error}") from error
        return arrays[0].flatten(1), arrays[1].long(), arrays[2].flatten(1), arrays[3].long()

    @cached_property
    def pixels(self) -> Resident:
        """The order in which pixels are read."""
        n = self.data.tensors["train images"].shape[1]
        return Resident(
            order=published_permutation(n) if self.order == "permuted" else torch.arange(n)
        )

    def examples(
        self, split: Split, index: Tensor, seed: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, None]:
        """Input (784, B, 1) and target (B)."""
        x, target = self.chosen(split, index, dtype)
        if self.noise:
            place = index.unsqueeze(1) * x.shape[1] + torch.arange(x.shape[1], device=x.device)
            z = normal(key("mnist", seed, split, "noise"), place, dtype=dtype)
            x = x.add_(z, alpha=self.noise**0.5)
        order = self.pixels.on(index.device)["order"]
        return x.t()[order].unsqueeze(-1), target, None

    def tiny(self) -> "MNIST":
        """Random images of 49 pixels."""
        return replace(self, invented=True)
