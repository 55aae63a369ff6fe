import math
from pathlib import Path
from typing import Any

import pytest
import torch

from cayley.lab.errors import DataError
from cayley.lab.tasks import Position
from cayley.lab.tasks.images import MNIST
from cayley.lab.tasks.images.mnist import FILES, published_permutation, read_idx
from cayley.lab.tasks.sources import Source


def test_permutation_is_the_published_one() -> None:
    order = published_permutation()
    assert order[:6].tolist() == [319, 576, 323, 107, 355, 716]
    assert sorted(order.tolist()) == list(range(784))


def test_permuted_pixels_are_those_in_order() -> None:
    plain: Any = MNIST(invented=True).batch("test", 10, Position())
    permuted: Any = MNIST(invented=True, order="permuted").batch("test", 10, Position())
    assert torch.equal(permuted.input, plain.input[published_permutation(49)])
    assert torch.equal(permuted.target, plain.target)


def test_noise_has_the_variance_and_stays() -> None:
    plain: Any = MNIST(invented=True)
    noisy: Any = MNIST(invented=True, noise=0.1)
    parts = []
    for number in range(3):
        position = Position(0, number)
        z = noisy.batch("test", 4, position).input - plain.batch("test", 4, position).input
        parts.append(z.flatten())
    z = torch.cat(parts)
    assert abs(z.mean()) < 4 * math.sqrt(0.1 / len(z))
    assert abs(z.var() - 0.1) < 4 * 0.1 * math.sqrt(2 / len(z))
    again = noisy.batch("test", 10, Position(5, 0)).input
    assert torch.equal(noisy.batch("test", 10, Position()).input, again)
    other = noisy.batch("test", 10, Position(), seed=1).input
    assert not torch.equal(again, other)


def test_idx_files() -> None:
    content = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, *range(6)])
    assert torch.equal(read_idx(content), torch.arange(6, dtype=torch.uint8).view(2, 3))
    with pytest.raises(DataError, match="expected an idx file"):
        read_idx(b"GIF89a")
    for length in range(len(content)):
        with pytest.raises(DataError, match="expected"):
            read_idx(content[:length])


def test_a_file_that_is_cut_is_named(tmp_path: Path) -> None:
    for resource in FILES:
        (tmp_path / resource.name).write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, 5]))
    with pytest.raises(DataError, match="could not read train-images-idx3-ubyte: expected 2 bytes"):
        MNIST(source=Source(tmp_path, check=False)).size("train")


@pytest.mark.parametrize(
    ("count", "labels", "message"),
    [(2, [5], "expected as many labels as images"), (2, [5, 10], "expected labels from 0 to 9")],
)
def test_labels_that_do_not_fit_are_refused(
    count: int, labels: list[int], message: str, tmp_path: Path
) -> None:
    images = bytes([0, 0, 8, 3, 0, 0, 0, count, 0, 0, 0, 1, 0, 0, 0, 1, *range(count)])
    for resource, content in zip(
        FILES, (images, bytes([0, 0, 8, 1, 0, 0, 0, len(labels), *labels])) * 2, strict=True
    ):
        (tmp_path / resource.name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        MNIST(validation=1, source=Source(tmp_path, check=False)).size("train")


def test_the_real_images(source: Source) -> None:
    task: Any = MNIST(source=source)
    assert [task.size(split) for split in ("train", "valid", "test")] == [55_000, 5_000, 10_000]
    data = task.data.tensors
    images = torch.cat((data["valid images"], data["train images"])).double() / 255
    # published: mean 0.1307, deviation 0.3081; the first labels
    assert round(float(images.mean()), 4) == 0.1307
    assert round(float(images.std(correction=0)), 4) == 0.3081
    assert data["valid labels"][:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert task.batch("train", 50, Position()).input.shape == (784, 50, 1)
    # digit 1 is the most frequent, 1135 times in the test set
    assert task.baseline("test")["accuracy"] == 0.1135
