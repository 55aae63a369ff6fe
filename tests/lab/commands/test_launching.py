"""``--devices``: what is refused before there are processes, and one failure of them."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import Started
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from cayley.cli import main
from cayley.lab.commands.launching import launch


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--devices", "3"], "expected a multiple of the 3 processes that share it, got 4"),
        (["--devices", "2", "--jobs", "2"], "expected --devices or --jobs, got both"),
        (["--devices", "2", "--together"], "without --together, which trains several runs"),
        (["--devices", "2", "--graph"], "without --graph, which records the steps of one device"),
    ],
)
def test_what_does_not_go_together_is_refused(
    words: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "runs"
    assert main(["train", "quickstart", "--tiny", "-o", str(place), *words]) == 2
    assert reason in capsys.readouterr().err
    assert not place.exists()


def test_a_run_that_is_there_is_not_begun_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "quickstart", "--tiny", "-q", "-o", str(tmp_path), "--device", "cpu"]
    words += ["--set", "training.steps=2"]
    assert main(words) == 0
    assert main([*words, "--devices", "2"]) == 4
    assert "expected a folder without a run" in capsys.readouterr().err


def test_under_torchrun_the_number_is_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("RANK", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT")
    for name in names:
        monkeypatch.setenv(name, "0")
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "mine")
    monkeypatch.setattr("cayley.lab.processes.Processes.claim_report", lambda self: True)
    assert main(["train", "quickstart", "--devices", "3"]) == 2
    assert "expected --devices 2, as torchrun has started so many" in capsys.readouterr().err
    assert main(["status"]) == 2
    assert "expected train or resume in 2 processes" in capsys.readouterr().err
    assert "TORCH_CPP_LOG_LEVEL" in os.environ
    monkeypatch.delenv("TORCH_CPP_LOG_LEVEL")


@pytest.mark.parametrize(("before", "after"), [(None, "2"), ("3", "3")])
def test_processes_share_the_cores(
    before: str | None, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless somebody has decided otherwise; --threads changes the number later."""
    found = {}

    def start(config: Any, program: str) -> Callable:
        return lambda *words: found.update(os.environ)

    monkeypatch.setattr("torch.distributed.launcher.api.elastic_launch", start)
    monkeypatch.setattr("torch.get_num_threads", lambda: 7)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if before is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", before)
    assert launch(["train", "quickstart"], 3) == 0
    assert found["OMP_NUM_THREADS"] == after
    assert os.environ.get("OMP_NUM_THREADS") == before


def command(environment: dict[str, str], *words: str) -> int:
    """What ``python -m cayley`` does in a process of an agent."""
    os.environ.clear()
    os.environ.update(environment)
    os.setsid()
    torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    return main(words)


@pytest.mark.slow
def test_all_processes_fail_with_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folders = [tmp_path / "0", tmp_path / "1"]

    def popen(self: SubprocessHandler, words: tuple[str, ...], environment: dict) -> Started:
        program = words.index("cayley")
        assert words[:program] in ((sys.executable, "-m"), (sys.executable, "-P", "-m"))
        folder = folders[self.local_rank_id]
        folder.mkdir()
        return Started(folder, __file__, "command", environment, *words[program + 1 :])

    monkeypatch.setattr(SubprocessHandler, "_popen", popen)
    words = ["train", "quickstart", "--tiny", "-q", "-o", str(tmp_path / "runs")]
    words += ["--set", "training.steps=30", "optim.lr=1e30", "optim.recurrent_lr=1e30"]
    assert main([*words, "--device", "cpu", "--devices", "2"]) == 3
    told = "".join([capfd.readouterr().err, *((each / "err").read_text() for each in folders)])
    lines = [line for line in told.splitlines() if "finite" in line or "cayley" in line]
    assert len(lines) == 1, told
    assert lines[0].startswith("cayley: the loss of step")
    assert "Traceback" not in told
