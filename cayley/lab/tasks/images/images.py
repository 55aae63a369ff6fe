"""Images of ten classes."""

from abc import abstractmethod
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from cayley.lab.errors import DataError
from cayley.lab.tasks.batch import Batch, Split
from cayley.lab.tasks.counter import integers, key
from cayley.lab.tasks.examples import ExampleTask
from cayley.lab.tasks.frequencies import count_classes, frequency_logits, frequency_scores
from cayley.lab.tasks.metrics import Metric, accuracy, crossentropy
from cayley.lab.tasks.resident import Resident

__all__ = ["CLASSES", "Images"]

CLASSES = 10


def _check(images: Tensor, labels: Tensor) -> None:
    if len(images) != len(labels):
        raise DataError(
            f"expected as many labels as images, got {len(labels)} and {len(images)}: fetch the "
            "files again"
        )
    if int(labels.max()) >= CLASSES:
        raise DataError(
            f"expected labels from 0 to {CLASSES - 1}, got {int(labels.max())}: fetch the files "
            "again"
        )


class Images(ExampleTask):
    """Images with labels; the naive predictor knows the frequencies of the labels."""

    naive_rule: ClassVar[str] = "the most frequent class of the training images: its share"

    @property
    @abstractmethod
    def validation(self) -> int:
        """The number of training images that are used for validation instead."""

    @property
    @abstractmethod
    def invented(self) -> bool:
        """Whether images are random."""

    @abstractmethod
    def read(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Training images and labels, test images and labels; images are uint8, (N, ·)."""

    @property
    @abstractmethod
    def invented_pixels(self) -> int:
        """The number of bytes of an invented image."""

    @cached_property
    def data(self) -> Resident:
        """Images and labels of each split."""
        if self.invented:
            count = 6 * CLASSES
            place = torch.arange(count * self.invented_pixels).view(count, -1)
            images = integers(key("images"), place, 256).to(torch.uint8)
            labels = torch.arange(count) % CLASSES
            images, test_images = images[CLASSES:], images[:CLASSES]
            labels, test_labels = labels[CLASSES:], labels[:CLASSES]
            cut = min(self.validation, CLASSES)
        else:
            images, labels, test_images, test_labels = self.read()
            cut = self.validation
            for one, other in ((images, labels), (test_images, test_labels)):
                _check(one, other)
        if not 0 <= cut < len(images):
            raise ValueError(
                f"expected validation from 0 to less than {len(images)} images, got {cut}"
            )
        return Resident(
            **{"train images": images[cut:], "train labels": labels[cut:]},
            **{"valid images": images[:cut], "valid labels": labels[:cut]},
            **{"test images": test_images, "test labels": test_labels},
        )

    def counts(self, split: Split) -> Tensor:
        """How often each class occurs."""
        return count_classes(self.data.tensors[f"{split} labels"], CLASSES)

    @property
    def output_size(self) -> int:
        """Ten classes."""
        return CLASSES

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Accuracy and cross entropy."""
        return accuracy, crossentropy

    def size(self, split: Split) -> int:
        """The number of images."""
        return len(self.data.tensors[f"{split} labels"])

    @property
    def example_size(self) -> int:
        """The pixels."""
        return self.data.tensors["train images"].shape[1]

    def chosen(self, split: Split, index: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Pixels in [0, 1], (B, ·), and labels, (B)."""
        data = self.data.on(index.device)
        images = data[f"{split} images"].index_select(0, index).to(dtype).div_(255)
        return images, data[f"{split} labels"][index]

    def naive(self, batch: Batch) -> Tensor:
        """The frequencies of the training labels."""
        logits = frequency_logits(self.counts("train"))
        return logits.to(batch.target.device).expand(len(batch.target), -1)

    def baseline(self, split: Split) -> dict[str, float]:
        """The share of the most frequent class, and the cross entropy of the frequencies."""
        scores = frequency_scores(self.counts("train"), self.counts(split))
        return {metric.name: scores[metric.name] for metric in self.metrics}
