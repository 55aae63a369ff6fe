import pytest
import torch

from cayley.lab.tasks import Position
from cayley.lab.tasks.examples import AT_ONCE, batches_at_once, example_numbers


def epoch(size: int, B: int, e: int, **options: object) -> list[int]:
    steps = -(-size // B)
    parts = [example_numbers(size, B, Position(e, b), **options) for b in range(steps)]
    assert [len(part) for part in parts[:-1]] == [B] * (steps - 1)
    return torch.cat(parts).tolist()


@pytest.mark.parametrize("B", [1, 3, 7, 100])
def test_an_epoch_is_a_permutation(B: int) -> None:
    orders = [epoch(23, B, e, seed=1, shuffle=True) for e in range(3)]
    for order in orders:
        assert sorted(order) == list(range(23))
    assert orders[0] != orders[1]
    assert orders[0] != epoch(23, B, 0, seed=2, shuffle=True)
    # the order does not depend on the batch size
    assert orders[0] == epoch(23, 5, 0, seed=1, shuffle=True)


def test_without_shuffling_numbers_ascend() -> None:
    assert epoch(5, 2, 3) == [0, 1, 2, 3, 4]


def test_fresh_examples_never_repeat() -> None:
    numbers = [n for e in range(4) for n in epoch(23, 7, e, fresh=True, shuffle=True)]
    assert numbers == list(range(4 * 23))


def test_how_many_batches_are_made_at_once() -> None:
    assert batches_at_once(400, 50, None) == batches_at_once(400, 50, "cpu") == 1
    # recordings differ in length: their batches are padded one by one
    assert batches_at_once(0, 50, "cuda") == 1
    for size, B in ((1, 1), (400, 50), (20_200, 128), (10**9, 1)):
        n = batches_at_once(size, B, torch.device("cuda"))
        assert 1 <= n <= 64
        assert n == 1 or n * size * B <= AT_ONCE
