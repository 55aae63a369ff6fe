import pickle
import threading
from typing import Any

import pytest
import torch

from cayley.lab.tasks import Position, Prefetcher
from cayley.lab.tasks.examples import chunk_length
from cayley.lab.tasks.prefetching import prefetch
from cayley.lab.tasks.synthetic import Adding
from cayley.lab.tasks.text import Text


def test_an_epoch_is_that_of_the_task() -> None:
    task = Adding(T=8, train=30)
    for batch, expected in zip(
        prefetch(task, "train", 7, seed=3), task.batches("train", 7, seed=3), strict=True
    ):
        assert batch.position == expected.position
        torch.testing.assert_close(batch.input, expected.input, rtol=0, atol=0)


def test_the_next_chunk_is_made_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Adding(T=8, train=100_000)
    threads = []
    chunk = Adding.chunk

    def watched(*arguments: Any, **options: Any) -> object:
        threads.append(threading.current_thread() is threading.main_thread())
        return chunk(*arguments, **options)

    monkeypatch.setattr(Adding, "chunk", watched)
    # an evaluation ends with its split: nothing is made ahead
    Prefetcher(task, "test", 50).batch(Position())
    assert threads == [True]
    threads.clear()
    batches = Prefetcher(task, "train", 50)
    position = Position()
    for _ in range(chunk_length(task.example_size, 50, None) + 1):
        position = batches.batch(position).next
    assert threads[:2] == [True, False]


@pytest.mark.parametrize("task", [Adding(T=8, train=30), Text(invented=True)])
def test_any_position_may_be_asked_for_twice(task: Adding | Text) -> None:
    batches = Prefetcher(task, "train", 4)
    for position in (Position(0, 2), Position(0, 2), Position(0, 0), Position(1, 1)):
        batch: Any = batches.batch(position)
        expected = task.batch("train", 4, position)
        torch.testing.assert_close(batch.input, expected.input, rtol=0, atol=0)
        batch.input.zero_()


def test_tasks_hold_no_threads() -> None:
    task = Adding(T=8, train=30)
    Prefetcher(task, "train", 4).batch(Position())
    assert pickle.loads(pickle.dumps(task)) == task
    assert vars(task) == vars(Adding(T=8, train=30))
