import sys
from pathlib import Path

import pytest

from cayley import cli
from cayley.lab.runs import find_runs, read_run

QUICK = ["-q", "--tiny", "--device", "cpu", "--set", "training.steps=2"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    return tmp_path


@pytest.mark.filterwarnings("ignore:optim.recurrent_lr. without effect")
@pytest.mark.parametrize(
    ("kind", "name", "file"),
    [
        ("task", "my-own-task", "my_own_task.py"),
        ("model", "MyOwnModel", "my_own_model.py"),
        ("recipe", "my_own_recipe", "my-own-recipe.toml"),
    ],
)
def test_what_is_written_runs(
    kind: str, name: str, file: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["new", kind, name]) == 0
    out = capsys.readouterr().out
    head, command = out.split(": try it out with cayley ")
    assert head == file
    assert cli.main([*command.split(), *QUICK]) == 0
    (folder,) = find_runs(here)
    assert "MyOwn" in str(read_run(folder)) or kind == "recipe"
    # nothing of the user's is written over
    assert cli.main(["new", kind, name]) == 4


@pytest.mark.parametrize("name", ["7", "-", "random", "torch", "class", "Größe", "../one"])
def test_names_that_cannot_be(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["new", "task", "--", name]) == 2
    assert "expected a name" in capsys.readouterr().err
    assert not list(here.iterdir())
