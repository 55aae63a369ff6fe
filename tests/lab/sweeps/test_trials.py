from pathlib import Path

import pytest
from lab.sweeps.made_up import SETTINGS, begin, space

from cayley.lab.errors import RunError
from cayley.lab.runs import Interrupts
from cayley.lab.sweeps.worker import work

pytest.importorskip("optuna", reason="sweeps need the extra sweep")


def test_the_run_of_another_trial_is_not_gone_on_with(tmp_path: Path) -> None:
    work(begin(tmp_path, trials=1), SETTINGS, interrupts=Interrupts())
    (tmp_path / "sweeps.journal").unlink()
    with pytest.raises(RunError, match="expected the run of this trial"):
        work(
            begin(tmp_path, space(**{"seed = 3": "seed = 9"}), trials=1),
            SETTINGS,
            interrupts=Interrupts(),
        )


def test_the_run_of_other_code_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cayley.lab.training.setup.find_code", lambda _: {"mine": "old"})
    work(begin(tmp_path, trials=1), SETTINGS, interrupts=Interrupts())
    (tmp_path / "sweeps.journal").unlink()
    monkeypatch.setattr("cayley.lab.sweeps.trials.find_code", lambda _: {"mine": "new"})
    with pytest.raises(RunError, match="got one with code of mine old, not new"):
        work(begin(tmp_path, trials=1), SETTINGS, interrupts=Interrupts())
