import json
import signal
from pathlib import Path
from typing import Any

import pytest
from lab.sweeps.made_up import SETTINGS, TEXT, begin, space

from cayley.lab.errors import Interrupted
from cayley.lab.runs import Interrupts, read_metrics
from cayley.lab.sweeps.worker import work
from cayley.lab.training import Quiet

pytest.importorskip("optuna", reason="sweeps need the extra sweep")


def test_pruned_diverged_and_failed_trials_end(tmp_path: Path) -> None:
    text = TEXT.partition("[parameters]")[0] + (
        "pruner = { name = 'threshold', upper = 0.0001 }\n"
        "[parameters]\n"
        "optim.lr = [1e-3, 1e30]\n"
        "training.clip_norm = [0.0]\n"
        "model.negative_ones = [3, 9]\n"
    )
    text = text.replace('name = "random", seed = 3', 'name = "grid"').replace(
        '"evaluation.every=2"', '"evaluation.every=2", "optim.name=SGD"'
    )
    sweep = begin(tmp_path, space(text))
    told = []
    work(sweep, SETTINGS, interrupts=Interrupts(), tell=told.append)
    states = [trial.state.name for trial in sweep.study.trials]
    assert states == ["PRUNED", "FAIL", "PRUNED", "FAIL"]
    reasons = [trial.user_attrs["reason"] for trial in sweep.study.trials]
    assert reasons[0] == "pruned after step 2"
    assert "negative_ones" in reasons[1]
    assert "step 2" in reasons[2]
    # a run that was pruned can be gone on with all the same
    records = (tmp_path / "mine" / "trial-0000" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(records[-1])["event"] == "pruned"
    assert [one.outcome.state for one in told] == ["pruned", "failed", "pruned", "failed"]


def test_a_trial_that_breaks_its_worker_again_and_again_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cayley.lab.sweeps import worker

    def fail(*arguments: Any, **more: Any) -> None:
        raise ZeroDivisionError("a fault of the device")

    monkeypatch.setattr(worker, "run_trial", fail)
    sweep = begin(tmp_path)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            work(sweep, SETTINGS, interrupts=Interrupts())
    (trial,) = sweep.study.trials
    assert trial.state.name == "FAIL"
    assert trial.user_attrs["reason"] == "ZeroDivisionError: a fault of the device"


class Stop(Quiet):
    """Asks a run to stop after a step."""

    def __init__(self, interrupts: Interrupts, last: int) -> None:
        self.interrupts, self.last = interrupts, last

    def step(self, step: int, epoch: float) -> None:
        if step == self.last:
            self.interrupts.signal = signal.SIGTERM


def test_a_worker_that_was_asked_to_stop_goes_on_with_its_trial(tmp_path: Path) -> None:
    interrupts = Interrupts()
    sweep = begin(tmp_path, trials=2)
    with pytest.raises(Interrupted, match=r"stopped in trial 0.*the same command") as caught:
        work(sweep, SETTINGS, interrupts=interrupts, reporter=lambda folder: Stop(interrupts, 3))
    assert caught.value.code == 143
    told: list[Any] = []
    work(begin(tmp_path, trials=2), SETTINGS, interrupts=Interrupts(), tell=told.append)
    assert [one.number for one in told] == [0, 1]
    events = [one["event"] for one in read_metrics(told[0].folder) if one["kind"] == "event"]
    assert events == ["interrupted", "resumed"]
    assert [sorted(one.intermediate_values) for one in sweep.study.trials] == [[2, 4]] * 2
