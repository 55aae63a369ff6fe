import os
import socket
from pathlib import Path

import pytest
from lab.sweeps.made_up import begin

from cayley.lab.sweeps import Outcome
from cayley.lab.sweeps import claims as claims_module
from cayley.lab.sweeps.claims import BEAT, OWNER, Watch

pytest.importorskip("optuna", reason="sweeps need the extra sweep")


def test_what_is_left_behind_is_taken_up_in_its_folder(tmp_path: Path) -> None:
    one, other = begin(tmp_path), begin(tmp_path)
    first, _ = one.claim()
    assert first is not None
    # it dies without a word
    os.close(first.claim._file)
    again, others = other.claim()
    assert again is not None
    assert (again.number, again.choice, again.folder) == (0, first.choice, first.folder.resolve())
    assert others == 0
    # whoever comes back from the dead is not listened to
    assert not one.finish(first, Outcome("complete", 5.0))
    with again.claim:
        assert other.finish(again, Outcome("complete", 2.0))
    assert not other.finish(again, Outcome("complete", 3.0))
    assert [trial.values for trial in other.study.trials] == [[2.0]]


def test_a_trial_without_a_worker_is_taken_up(tmp_path: Path) -> None:
    sweep = begin(tmp_path)
    sweep.study.ask()
    task, _ = sweep.claim()
    assert task is not None
    assert task.number == 0


def test_a_worker_of_another_machine_is_silent_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = begin(tmp_path)
    task, _ = sweep.claim()
    assert task is not None
    os.close(task.claim._file)
    content = {**task.trial.user_attrs[OWNER], "host": "another", "folder": "/not/here"}
    task.trial.set_user_attr(OWNER, content)
    clock = [0.0]
    monkeypatch.setattr(claims_module.time, "monotonic", lambda: clock[0])
    watch = Watch()

    def is_left() -> bool:
        return watch.is_left(sweep.study.get_trials(deepcopy=False)[0])

    assert not is_left()
    clock[0] = 100.0
    task.trial.set_user_attr(BEAT, 1)
    assert not is_left()
    clock[0] = 240.0
    assert not is_left()
    clock[0] = 260.0
    assert is_left()
    # where its folder is seen and locked, it is alive however silent
    content["folder"], content["host"] = str(task.folder), socket.gethostname()
    task.trial.set_user_attr(OWNER, content)
    again, _ = sweep.claim()
    assert again is not None
    with again.claim:
        assert not watch.is_left(sweep.study.get_trials(deepcopy=False)[0])


def test_the_number_of_a_claim_counts_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_module, "BEAT_SECONDS", 0.01)
    sweep = begin(tmp_path)
    task, _ = sweep.claim()
    assert task is not None
    with task.claim:
        while sweep.study.get_trials(deepcopy=False)[0].user_attrs.get(BEAT, 0) < 3:
            pass
