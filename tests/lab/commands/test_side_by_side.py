import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import FORKED

import cayley
import cayley.cli
from cayley.lab.commands.queue import Queue, Work
from cayley.lab.commands.side_by_side import child_command, run_side_by_side
from cayley.lab.errors import Interrupted
from cayley.lab.runs import Interrupts, find_state, is_running


def work(folder: Path, name: str, program: str) -> Work:
    """A run that is a short program without torch; ``folder`` is its working memory."""
    begin = f"import os, pathlib, signal, sys, time\nfolder = pathlib.Path({str(folder)!r})\n"
    return Work(name, name, folder / name, (sys.executable, "-c", begin + program))


def states(queue: Queue) -> dict[str, str]:
    return {row["run"]: row["state"] for row in json.loads(queue.file.read_text())}


def test_several_at_a_time(tmp_path: Path) -> None:
    # each waits for the other: one after the other, they would never end
    meet = "(folder / '{0}').touch()\nwhile not (folder / '{1}').exists(): time.sleep(0.01)\n"
    works = [
        work(tmp_path, "a", meet.format("at", "bt")),
        work(tmp_path, "b", meet.format("bt", "at")),
    ]
    queue = Queue(works, tmp_path / "queue.json")
    assert run_side_by_side(queue, 2, Interrupts(), tell=lambda words: None) == 0
    assert states(queue) == {"a": "done", "b": "done"}


def test_no_more_than_there_are_slots(tmp_path: Path) -> None:
    alone = (
        "os.mkdir(folder / 'busy')\n"  # fails if it is there
        "time.sleep(0.05)\n"
        "os.rmdir(folder / 'busy')\n"
    )
    queue = Queue([work(tmp_path, name, alone) for name in "abc"], tmp_path / "queue.json")
    assert run_side_by_side(queue, 1, Interrupts(), tell=lambda words: None) == 0


def test_what_was_killed_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = (
        "mark = folder / 'mark'\n"
        "if mark.exists(): sys.exit(0)\n"
        "mark.touch()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    queue = Queue([work(tmp_path, "a", program)], tmp_path / "queue.json")
    assert run_side_by_side(queue, 1, Interrupts(), tell=lambda words: None) == 0
    assert queue.works[0].tries == 2
    assert "a: died (SIGKILL), resumes from its checkpoint" in capsys.readouterr().err


def test_what_is_killed_again_and_again_is_given_up(tmp_path: Path) -> None:
    queue = Queue(
        [work(tmp_path, "a", "os.kill(os.getpid(), signal.SIGKILL)")], tmp_path / "queue.json"
    )
    assert run_side_by_side(queue, 1, Interrupts(), tell=lambda words: None) == 137
    assert queue.works[0].tries == 3


def test_a_failure_does_not_stop_the_rest_and_is_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    works = [work(tmp_path, "a", "sys.exit('out of luck')"), work(tmp_path, "b", "sys.exit(3)")]
    queue = Queue([*works, work(tmp_path, "c", "")], tmp_path / "queue.json")
    # errors are printed by a quiet command, too
    assert run_side_by_side(queue, 1, Interrupts(), tell=lambda words: None) == 1
    assert states(queue) == {"a": "failed", "b": "failed", "c": "done"}
    # no run had begun: it would fail again
    assert queue.works[0].tries == 1
    errors = capsys.readouterr().err.splitlines()
    assert errors[0].startswith("a: failed (exit code 1). out of luck")
    assert errors[1].startswith("b: failed (exit code 3). ")


def test_a_run_that_had_begun_when_its_device_failed_goes_on(tmp_path: Path) -> None:
    program = (
        "(folder / 'a').mkdir(exist_ok=True)\n"
        "mark = folder / 'a' / 'run.json'\n"
        "if mark.exists(): sys.exit(0)\n"
        "mark.touch()\n"
        "sys.exit('CUDA error: unspecified launch failure')\n"
    )
    queue = Queue([work(tmp_path, "a", program)], tmp_path / "queue.json")
    assert run_side_by_side(queue, 1, Interrupts(), tell=lambda words: None) == 0


# takes note of SIGTERM, as a run does that writes its checkpoint
PATIENT = (
    "def stop(*_): (folder / 'saved').touch(); sys.exit(143)\n"
    "signal.signal(signal.SIGTERM, stop)\n"
    "(folder / 'ready').touch()\n"
    "while True: time.sleep(0.01)\n"
)


class WhenReady(Interrupts):
    """A signal that comes once a program is under way."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    @property
    def signal(self) -> int:
        return int(signal.SIGINT) if (self.folder / "ready").exists() else 0

    @signal.setter
    def signal(self, value: int) -> None:
        pass


def test_a_signal_stops_all_with_their_checkpoints(tmp_path: Path) -> None:
    works = [work(tmp_path, "a", PATIENT), work(tmp_path, "b", "")]
    queue = Queue(works, tmp_path / "queue.json")
    with pytest.raises(Interrupted, match="stopped with 2 runs to do; continue with"):
        run_side_by_side(queue, 1, WhenReady(tmp_path), tell=lambda words: None)
    assert (tmp_path / "saved").exists()
    assert states(queue) == {"a": "to do", "b": "to do"}


def test_the_time_is_over(tmp_path: Path) -> None:
    queue = Queue([work(tmp_path, "a", "time.sleep(600)")], tmp_path / "queue.json")
    said: list[str] = []
    began = time.monotonic()
    assert run_side_by_side(queue, 1, Interrupts(), seconds=0.0, tell=said.append) == 0
    assert time.monotonic() - began < 60
    assert states(queue) == {"a": "to do"}
    assert said == ["the time is over with 1 run to do; continue with the same command"]


def test_a_damaged_result_gives_no_estimate(tmp_path: Path) -> None:
    damaged, fine = work(tmp_path, "a", ""), work(tmp_path, "b", "")
    assert damaged.folder is not None
    damaged.folder.mkdir(parents=True, exist_ok=True)
    (damaged.folder / "result.json").write_text('{"x":')
    queue = Queue([damaged, fine], tmp_path / "queue.json")
    assert run_side_by_side(queue, 2, Interrupts()) == 0
    assert states(queue) == {"a": "done", "b": "done"}


@pytest.mark.slow
def test_a_table_with_two_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # the processes above are real, but need not import torch
    monkeypatch.setattr("cayley.lab.commands.side_by_side.subprocess", FORKED)
    command = ["reproduce", "quickstart", "--tiny", "--seeds", "2", "--jobs", "2", "--set"]
    command += ["training.steps=2", "-o", str(tmp_path)]
    assert cayley.cli.main(command) == 0
    assert len(list(tmp_path.rglob("result.json"))) == 2
    assert "seed5545: done" in capsys.readouterr().err
    # what is done needs no process
    monkeypatch.setattr("cayley.lab.commands.side_by_side.subprocess", None)
    assert cayley.cli.main(command) == 0
    assert "2 runs done before" in capsys.readouterr().err
    assert {row["state"] for row in json.loads((tmp_path / "queue.json").read_text())} == {"done"}

    # what is not as it should be says so itself
    monkeypatch.setattr("cayley.lab.commands.side_by_side.subprocess", FORKED)
    result, other = sorted(tmp_path.rglob("result.json"))
    result.write_text('{"x":')
    recipe = other.with_name("recipe.toml")
    recipe.write_text(recipe.read_text().replace("hidden = 80", "hidden = 81"))
    assert cayley.cli.main(command) == 4
    said = capsys.readouterr().err
    assert "done before" not in said
    assert said.count("failed (exit code 4)") == 2


def test_seeds_of_a_recipe_with_two_jobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "quickstart", "--tiny", "--seeds", "2", "-o", str(tmp_path)]
    assert cayley.cli.main([*command, "-q"]) == 0
    assert cayley.cli.main([*command, "--jobs", "2"]) == 0
    assert "2 runs done before" in capsys.readouterr().err
    assert cayley.cli.main([*command, "--jobs", "2", "--json"]) == 0
    lines = map(json.loads, capsys.readouterr().out.splitlines())
    assert [Path(line["run"]).name for line in lines if line["kind"] == "result"] == [
        "tiny-seed5544",
        "tiny-seed5545",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("words", "runs"), [(("--seeds", "2", "--jobs"), 2), (("--devices",), 1)])
def test_runs_write_their_checkpoints_and_end_if_their_parent_is_killed(
    words: tuple[str, ...], runs: int, tmp_path: Path
) -> None:
    endless = [
        "quickstart",
        "--tiny",
        "--set",
        "training.steps=1000000",
        "evaluation.every=1000000",
    ]
    command = ["train", *endless, *words, "2", "--device", "cpu", "-q"]
    parent = subprocess.Popen(child_command([*command, "-o", str(tmp_path)]))

    def ready(names: str, count: int) -> bool:
        end = time.monotonic() + 120
        while len([*tmp_path.rglob(names)]) < count and time.monotonic() < end:
            time.sleep(0.05)
        return len([*tmp_path.rglob(names)]) == count

    try:
        assert ready("run.json", runs)
    finally:
        parent.kill()
        parent.wait()
    assert ready("checkpoint.pt", runs)
    for folder in (path.parent for path in tmp_path.rglob("run.json")):
        # torch looks for the store of its processes for a while
        end = time.monotonic() + 60
        while is_running(folder) and time.monotonic() < end:
            time.sleep(0.05)
        assert find_state(folder).state == "stopped"


def test_no_file_of_the_current_folder_hides_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "statistics.py").write_text("raise ImportError('of the user')")
    monkeypatch.chdir(tmp_path)
    subprocess.run(child_command(["list", "quickstart"]), check=True, stdout=subprocess.DEVNULL)
    # unless the package is there
    monkeypatch.chdir(Path(cayley.__file__).parents[1])
    assert "-P" not in child_command(["list"])
