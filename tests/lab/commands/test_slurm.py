"""The script of an array, as bash reads it: there is no Slurm here."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import cayley.cli
from cayley.lab.commands.slurm import array_script

ROOT = Path(cayley.__file__).parent.parent


def run_index(script: Path, index: int) -> subprocess.CompletedProcess[str]:
    """What Slurm does for an index: all else of it are comments to bash."""
    environment = {"SLURM_ARRAY_TASK_ID": str(index), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        ["bash", script], capture_output=True, text=True, env=os.environ | environment, cwd="/"
    )


def write(*options: str) -> int:
    command = ["reproduce", "quickstart", "--tiny", "--seeds", "2", "--set", "training.steps=2"]
    return cayley.cli.main([*command, *options])


@pytest.mark.slow
def test_every_index_is_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert write("--slurm", "job.sbatch", "-o", "my runs", "--jobs", "4") == 0
    assert "job.sbatch: 2 runs; start them: sbatch job.sbatch" in capsys.readouterr().err
    script = tmp_path / "job.sbatch"
    text = script.read_text()
    assert "#SBATCH --array=0-1%4\n" in text
    assert "--gres" not in text
    # the folder of the logs is there, and nothing has been run
    assert list((tmp_path / "my runs").iterdir()) == []
    done = run_index(script, 1)
    assert done.returncode == 0, done.stderr
    (first,) = tmp_path.rglob("result.json")
    assert first.parent.name.endswith("seed5545")
    # the runs are those of the command without Slurm, and what is done is not done again
    before = first.read_bytes()
    assert write("-o", "my runs") == 0
    assert first.read_bytes() == before
    results = {path: path.read_bytes() for path in tmp_path.rglob("result.json")}
    assert len(results) == 2
    assert run_index(script, 0).returncode == 0
    assert results == {path: path.read_bytes() for path in tmp_path.rglob("result.json")}


@pytest.mark.parametrize("name", ["my runs", "it's", "a #b", "50%a"])
def test_a_folder_may_have_any_name(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slurm splits these lines as shlex does, tried with 22.05, and replaces %a and %%."""
    script = tmp_path / f"{name}.sbatch"
    assert write("--slurm", str(script), "-o", str(tmp_path / name)) == 0
    (line,) = (line for line in script.read_text().splitlines() if "--output=/" in line)
    pattern = f"{str(tmp_path / name).replace('%', '%%')}/slurm-%a.log"
    assert shlex.split(line) == ["#SBATCH", f"--output={pattern}"]
    _, _, command = capsys.readouterr().err.partition("start them: ")
    assert shlex.split(command) == ["sbatch", str(script)]


def test_what_a_run_asks_for(tmp_path: Path) -> None:
    script = tmp_path / "job.sbatch"
    assert (
        write("--slurm", str(script), "-o", str(tmp_path), "--gpus-per-run", "1", "--threads", "4")
        == 0
    )
    text = script.read_text()
    for line in ("--gres=gpu:1", "--cpus-per-task=4", "--array=0-1"):
        assert f"#SBATCH {line}\n" in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--gpus-per-run", "0.25"], "expected a whole number of GPUs for --slurm, got"),
        (["--budget", "10m"], "expected --slurm without --budget"),
        (["--fetch"], "expected --slurm without --budget and --fetch"),
    ],
)
def test_what_slurm_cannot_do(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "job.sbatch"
    assert write("--slurm", str(script), "-o", str(tmp_path), *options) == 2
    assert words in capsys.readouterr().err
    assert not script.exists()


def test_words_reach_the_command_as_they_are(tmp_path: Path) -> None:
    words = ["it's", 'a "b"', "$HOME", "x=[1, 2]", ""]
    script = tmp_path / "job.sbatch"
    show = [sys.executable, "-c", "import sys; print(sys.argv[1:])"]
    script.write_text(array_script([["false"], [*show, *words]], tmp_path))
    assert run_index(script, 1).stdout == f"{words}\n"
    assert run_index(script, 0).returncode == 1
    assert run_index(script, 2).returncode == 2
    assert "expected an index from 0 to 1, got 2" in run_index(script, 2).stderr
