import os
import subprocess
from pathlib import Path

import pytest
import torch

from cayley.lab.errors import MachineError
from cayley.lab.runs.machine import (
    GitState,
    Machine,
    describe_machine,
    find_git_state,
    find_versions,
)


def test_precision_is_a_dtype() -> None:
    assert Machine(precision="64-true").dtype == torch.float64
    assert Machine(precision="bf16-mixed").dtype == torch.float32
    assert Machine("cpu").engine().device == torch.device("cpu")


def test_more_threads_than_a_machine_can_start_are_refused() -> None:
    """It would die of them, without a word."""
    for threads in (100_000, 10**30, -1):
        with pytest.raises(MachineError, match=rf"expected 0 to .*{os.cpu_count()} cores?, got"):
            Machine("cpu", threads=threads).engine()
    # runs may come from larger machines
    assert Machine("cpu", threads=200).threads == 200


def test_threads_are_set() -> None:
    before = torch.get_num_threads()
    Machine("cpu", threads=3).engine()
    assert torch.get_num_threads() == 3
    torch.set_num_threads(before)
    Machine("cpu").engine()
    assert torch.get_num_threads() == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(MachineError, match="choose --device cpu"):
        Machine("cuda").engine()


def test_what_numbers_depend_on_is_named() -> None:
    found = describe_machine(Machine("cpu", "64-true"), torch.device("cpu"))
    assert found.precision == "64-true"
    assert found.threads == torch.get_num_threads()
    assert find_versions()["torch"] == torch.__version__


def test_revision_of_a_repository_or_none(tmp_path: Path) -> None:
    assert find_git_state(tmp_path) is None
    commands = (
        ["init", "--quiet"],
        [
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@b",
            "commit",
            "--quiet",
            "--allow-empty",
            "-m",
            "x",
        ],
    )
    for command in commands:
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert find_git_state(tmp_path) == GitState(head.stdout.strip(), False)
    (tmp_path / "new").write_text("")
    assert find_git_state(tmp_path) == GitState(head.stdout.strip(), True)
