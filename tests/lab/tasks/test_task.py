import torch

from cayley.lab.tasks import Position
from cayley.lab.tasks.images import MNIST
from cayley.lab.tasks.synthetic import Adding


def test_an_empty_split_has_no_batches() -> None:
    assert list(Adding(valid=0).batches("valid", 10, epochs=None)) == []


def test_batches_go_on_from_a_position_over_epochs() -> None:
    task = Adding(T=4, train=10)
    found = [batch.position for batch in task.batches("train", 4, start=Position(1, 1), epochs=3)]
    assert found == [Position(1, 1), Position(1, 2), *(Position(2, b) for b in range(3))]


def test_the_loss_is_that_of_classes_or_of_numbers() -> None:
    adding, images = Adding(T=4, train=10), MNIST(invented=True)
    batch = next(adding.batches("train", 4))
    assert adding.loss(batch.target + 2, batch) == 4.0
    batch = next(images.batches("train", 4))
    torch.testing.assert_close(images.loss(torch.zeros(4, 10), batch), torch.tensor(10.0).log())
