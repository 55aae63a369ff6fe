import sys
from pathlib import Path

import pytest

from cayley.lab.commands import node
from cayley.lab.commands.node import Terminated, run_command
from cayley.lab.runs import RunFolder

TINY = ["--tiny", "--set", "training.steps=2", "model.hidden=4"]


def test_a_command_in_this_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.argv
    outcome = run_command(["show", "quickstart"], {})
    assert (outcome.code, outcome.words) == (0, "")
    outcome = run_command(["show", "no-such-recipe"], {})
    assert outcome.code == 2
    assert "no-such-recipe" in outcome.words
    assert sys.argv is before
    # the words are for whoever asked, and for the logs of Ray
    out, err = capsys.readouterr()
    assert not out
    assert "no-such-recipe" in err


def test_an_error_that_nobody_caught_is_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*names: str, **more: str) -> None:
        raise RuntimeError("CUDA error")

    monkeypatch.setattr("runpy.run_module", fail)
    assert run_command([], {}).words == "RuntimeError: CUDA error"
    assert run_command([], {}).code == 1


def test_a_run_whose_node_goes_away_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM is not of this program: an exit code would be a failure, an exception is not."""

    def stop(*names: str, **more: str) -> None:
        print("stopped at step 3", file=sys.stderr)
        raise SystemExit(143)

    monkeypatch.setattr("runpy.run_module", stop)
    with pytest.raises(Terminated, match="stopped at step 3"):
        run_command([], {})


def test_a_folder_that_a_dying_process_holds_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = iter([True, True, False])
    monkeypatch.setattr(node, "is_running", lambda folder: next(states))
    monkeypatch.setattr(node, "LOOK_SECONDS", 0.01)
    assert run_command(["show", "quickstart"], {}, tmp_path).code == 0
    assert not list(states)
    monkeypatch.undo()
    # for some time
    monkeypatch.setattr(node, "LOCK_SECONDS", 0.1)
    command = ["train", "quickstart", *TINY, "--seeds", "1", "-q", "--output", str(tmp_path)]
    assert run_command(command, {}).code == 0
    (done,) = tmp_path.glob("*/*/result.json")
    with RunFolder(done.parent) as held:
        outcome = run_command(command, {}, held.folder)
    assert outcome.code == 4
    assert "to be free" in outcome.words
