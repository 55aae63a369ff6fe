from typing import Any

import pytest
import torch

from cayley.lab.tasks import Position
from cayley.lab.tasks.examples import CHUNK_NUMBERS, chunk_length, example_numbers
from cayley.lab.tasks.synthetic import Adding


def epoch(size: int, B: int, e: int, **options: Any) -> list[int]:
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


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_how_many_batches_are_made_at_once(device: str) -> None:
    # recordings differ in length: their batches are padded one by one
    assert chunk_length(0, 50, device) == 1
    assert chunk_length(100, 5, device) == 64
    for size, B in ((1, 1), (400, 50), (20_200, 128), (10**9, 1)):
        n = chunk_length(size, B, torch.device(device))
        assert 1 <= n <= 64
        assert n == 1 or n * size * B <= CHUNK_NUMBERS[device]


def test_without_a_device_batches_are_made_on_the_cpu() -> None:
    assert chunk_length(400, 50, None) == chunk_length(400, 50, "cpu") == 13


def test_writing_into_a_batch_changes_no_other() -> None:
    task: Any = Adding(T=12, train=40)
    plain = [batch.input.clone() for batch in task.batches("train", 10)]
    for number, expected in enumerate(plain):
        for _ in range(2):
            batch = task.batch("train", 10, Position(0, number))
            assert torch.equal(batch.input, expected)
            batch.input.fill_(torch.nan)
