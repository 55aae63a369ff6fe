"""The states of studies, read from their storage."""

import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from lab.sweeps.made_up import begin

from cayley.lab.sweeps import describe_studies, open_storage
from cayley.lab.sweeps.claims import OWNER

pytest.importorskip("optuna", reason="sweeps need the extra sweep")


def test_a_trial_whose_worker_has_ended_is_nobodys(tmp_path: Path) -> None:
    url = f"journal://{tmp_path / 'sweeps.journal'}"
    sweep = begin(tmp_path, url=url)
    task, _ = sweep.claim()
    assert task is not None

    def worker() -> str:
        (study,) = describe_studies(open_storage(url))
        (running,) = study["running"]
        return running["worker"]

    with task.claim:
        owner = task.claim.owner
        assert worker() == f"process {os.getpid()} on {owner.host}"
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()
        storage = task.claim.storage
        storage.set_trial_user_attr(
            task.claim.trial, OWNER, asdict(replace(owner, process=ended.pid))
        )
        assert worker() == ""
        # of another machine nothing is known
        far = replace(owner, process=ended.pid, host="elsewhere")
        storage.set_trial_user_attr(task.claim.trial, OWNER, asdict(far))
        assert worker() == f"process {ended.pid} on elsewhere"
