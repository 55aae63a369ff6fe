import socket
from pathlib import Path

from lab.report.folders import make_recipe, write_run

from cayley.lab.runs import RunFolder, find_state
from cayley.lab.runs.state import is_running


def make_run(tmp_path: Path, *, finished: bool) -> Path:
    recipe = make_recipe("scornn/mnist-170", "images", {"name": "ScoRNN", "hidden": 8})
    scores = {"accuracy": 0.9, "cross_entropy": 0.3}
    options = {"start": scores, "baseline": scores}
    return write_run(tmp_path, recipe, scores=scores, finished=finished, **options)


def test_a_finished_run_is_done(tmp_path: Path) -> None:
    found = find_state(make_run(tmp_path, finished=True))
    assert (found.state, found.message) == ("done", "done")
    assert found.step == found.steps > 0


def test_a_run_is_running_while_its_lock_is_held(tmp_path: Path) -> None:
    folder = make_run(tmp_path, finished=False)
    with RunFolder(folder) as run:
        run.record({"kind": "train", "step": 6610, "epoch": 1.0, "loss": 0.1})
        assert find_state(folder).state == "running"
        # to look does not take the lock away
        assert is_running(folder)
    found = find_state(folder)
    assert (found.state, found.message) == ("stopped", "killed, or the machine went off")
    assert found.step == 6610


def test_the_last_event_tells_why_a_run_ended(tmp_path: Path) -> None:
    folder = make_run(tmp_path, finished=False)
    ends = (("interrupted", "stopped"), ("pruned", "stopped"), ("not finite", "failed"))
    ends += (("error", "stopped"),)
    for event, state in ends:
        with RunFolder(folder) as run:
            record = {"kind": "event", "step": 7, "epoch": 0.5, "event": event, "message": "why"}
            run.record(record)
        found = find_state(folder)
        assert (found.state, found.message) == (state, "why")


def test_a_run_that_was_killed_after_it_had_gone_on_was_killed(tmp_path: Path) -> None:
    folder = make_run(tmp_path, finished=False)
    for event in ("interrupted", "resumed"):
        with RunFolder(folder) as run:
            run.record({"kind": "event", "step": 7, "epoch": 0.5, "event": event, "message": "why"})
    found = find_state(folder)
    assert (found.state, found.message) == ("stopped", "killed, or the machine went off")


def test_a_damaged_run_is_told_apart(tmp_path: Path) -> None:
    folder = make_run(tmp_path, finished=True)
    (folder / "result.json").write_text("{")
    assert find_state(folder).state == "damaged"
    (folder / "run.json").write_text("{")
    found = find_state(folder)
    assert found.state == "damaged"
    assert str(folder) in found.message


def test_a_lock_of_a_process_that_is_gone_is_not_tried(tmp_path: Path) -> None:
    assert not is_running(tmp_path)
    gone = 2**22 + 1  # no process has a greater number
    (tmp_path / "lock").write_text(f"process {gone} on {socket.gethostname()}")
    assert not is_running(tmp_path)
