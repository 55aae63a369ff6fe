from typing import Any

import pytest
import torch
from torch import Tensor

from cayley.lab.tasks import Position
from cayley.lab.tasks.images import CIFAR10, MNIST


@pytest.mark.parametrize("kind", [MNIST, CIFAR10])
def test_validation_takes_the_first_of_the_training_images(kind: type) -> None:
    some, none = kind(invented=True, validation=7).data, kind(invented=True, validation=0).data
    whole = none.tensors["train images"]
    assert len(none.tensors["valid labels"]) == 0
    assert torch.equal(some.tensors["valid images"], whole[:7])
    assert torch.equal(some.tensors["train images"], whole[7:])


def test_too_much_validation_is_refused() -> None:
    class Few(MNIST):
        def read(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            labels = torch.arange(3)
            return torch.zeros(3, 784), labels, torch.zeros(3, 784), labels

    with pytest.raises(ValueError, match="expected validation from 0 to less than 3"):
        Few(validation=3).size("train")


def test_pixels_are_from_0_to_1() -> None:
    task = CIFAR10(invented=True)
    batch: Any = task.batch("test", 10, Position())
    raw = task.data.tensors["test images"]
    torch.testing.assert_close(batch.input, raw.double() / 255, rtol=0, atol=0)
    assert batch.input.max() <= 1
