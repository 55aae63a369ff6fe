import json
import math

import pytest

from cayley.lab.tasks import Position
from cayley.lab.training import progress as state
from cayley.lab.training.progress import Mean, Progress, Stopwatch


def test_means() -> None:
    mean = Mean()
    assert mean.take() is None
    for value in (1.0, 2.0, 6.0):
        mean.add(value)
    assert mean.take() == 3.0
    assert mean == Mean()


def test_a_stopwatch_counts_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10.0
    monkeypatch.setattr(state.time, "perf_counter", lambda: now)
    watch = Stopwatch()
    watch.start()
    now = 13.0
    assert watch.seconds == 3.0
    watch.stop()
    now = 20.0
    assert watch.seconds == 3.0
    watch.start()
    now = 21.0
    assert watch.seconds == 4.0


def test_epochs_and_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(state.time, "perf_counter", lambda: now)
    progress = Progress()
    progress.watch.start()
    for end in (2.0, 5.0):
        now = end
        progress.end_epoch()
    assert progress.epoch_seconds == [2.0, 3.0]
    assert progress.end_interval() is None
    for loss, best in ((2.0, 2.0), (1.0, 1.0), (3.0, 1.0)):
        progress.trained.add(loss)
        assert progress.end_interval() == loss
        assert progress.best_train_loss == best


def test_state_survives_json() -> None:
    progress = Progress(7, Position(2, 3), 5, Mean(1 / 3, 2), Mean(math.pi, 4), 0.25)
    progress.epoch_seconds.append(1.5)
    again = Progress()
    again.load_state_dict(json.loads(json.dumps(progress.state_dict())))
    assert again == progress
