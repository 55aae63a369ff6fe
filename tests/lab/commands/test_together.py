"""``cayley train --together``: seeds and grids of settings, side by side."""

import json
from pathlib import Path

import pytest

from cayley import cli

TINY = (
    "train",
    "quickstart",
    "--tiny",
    "--together",
    "--set",
    "training.steps=3",
    "model.hidden=4",
)


def test_seeds_and_rates_have_a_folder_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*TINY, "optim.lr=1e-3,3e-4", "--seed", "1", "--seeds", "2", "-o", str(tmp_path)]
    assert cli.main(command) == 0
    names = sorted(path.name for path in (tmp_path / "quickstart").iterdir())
    rates = ("lr-1e-3", "lr-3e-4")
    assert names == [f"hidden-4-{lr}-steps-3-tiny-seed{seed}" for lr in rates for seed in (1, 2)]
    output = capsys.readouterr().out
    assert output.count("done, 3 steps") == 4
    assert output.count("2 seeds: ") == 2
    # what is finished is skipped, and one seed more begins
    assert cli.main([*command, "--seeds", "3", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    begun = {line["run"] for line in lines if line["kind"] == "run" and line["step"] == 0}
    folder = tmp_path / "quickstart"
    assert begun == {str(folder / f"hidden-4-{lr}-steps-3-tiny-seed3") for lr in rates}
    assert {line["run"] for line in lines if line["kind"] == "eval"} == begun
    assert {line["run"] for line in lines if line["kind"] == "result"} == {
        str(path) for path in folder.iterdir()
    }


def test_a_failure_is_said_and_its_code_returned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*TINY, "optim.name=SGD", "optim.recurrent_lr=1e-3", "optim.lr=1e-3,1e38"]
    assert cli.main([*command, "training.clip_norm=0", "-o", str(tmp_path)]) == 3
    streams = capsys.readouterr()
    assert streams.out.count("done, 3 steps") == 1
    assert "lr-1e38" in streams.err


def test_what_it_does_not_go_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*TINY, "-o", str(tmp_path), "--extend", "3"]) == 2
    assert "--extend" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_a_value_that_is_given_twice_is_one_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*TINY, "optim.lr=1e-3,0.001", "-o", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("done, 3 steps") == 1
