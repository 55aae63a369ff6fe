import threading
import time
from pathlib import Path

import pytest

from cayley.lab.errors import RunError
from cayley.lab.processes import Processes
from cayley.lab.runs import Machine, RunFolder, SharedFolder, open_folder


def test_alone_it_is_a_folder_as_ever(tmp_path: Path) -> None:
    with open_folder(tmp_path, Machine("cpu")) as run:
        assert isinstance(run, RunFolder)


def test_processes_that_were_started_again_wait_for_those_before(tmp_path: Path) -> None:
    before = RunFolder(tmp_path)
    with pytest.raises(RunError, match="to be free"):
        SharedFolder(tmp_path, Processes(0, 2))
    timer = threading.Timer(0.3, lambda: before.__exit__(None, None, None))
    timer.start()
    began = time.monotonic()
    with SharedFolder(tmp_path, Processes(0, 2, restarts=1)) as run:
        assert time.monotonic() - began >= 0.25
        run.record({"kind": "event", "step": 1})
        assert run.mark().size
    timer.join()


def test_only_the_first_process_writes(tmp_path: Path) -> None:
    with SharedFolder(tmp_path / "run", Processes(1, 2)) as run:
        run.write("recipe.toml", b"")
        run.save("checkpoint.pt", {})
        run.record({"kind": "event", "step": 1})
        run.rewind(run.mark())
    assert not (tmp_path / "run").exists()
