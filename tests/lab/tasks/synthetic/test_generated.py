from typing import Any

import pytest

from cayley.lab.tasks import SPLITS
from cayley.lab.tasks.synthetic import TASKS, GeneratedTask


@pytest.mark.parametrize("name", TASKS)
def test_settings_say_how_many_and_how_long(name: str) -> None:
    kind = TASKS[name][0]
    assert issubclass(kind, GeneratedTask)
    task = kind(T=20, train=7, valid=5, test=3)
    assert [task.size(split) for split in SPLITS] == [7, 5, 3]
    batch: Any = next(task.batches("train", 1))
    assert batch.input.numel() == task.example_size
    assert task.tiny().T <= 12
    assert kind(T=11).tiny().T <= 11
