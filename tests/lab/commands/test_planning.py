import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cayley import cli
from cayley.lab.commands.queue import Queue, Work
from cayley.lab.recipes import read_table
from cayley.lab.recipes.views import Curve
from cayley.lab.runs import Machine, describe_machine, find_runs

TINY = ["--tiny", "--device", "cpu", "--set", "training.steps=3"]


def test_a_dry_run_tells_the_rows_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["reproduce", "quickstart", "-o", str(tmp_path), "--seeds", "2", *TINY]
    assert cli.main([*arguments, "--dry-run"]) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("quickstart: 2 runs, 0 done; 0:00:0")
    assert "(3 steps of " in first
    assert last.startswith("2 runs to do: 0:00:0")
    assert not list(tmp_path.iterdir())
    assert cli.main(["reproduce", "quickstart", "-o", str(tmp_path), "-q", *TINY]) == 0
    assert cli.main([*arguments, "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["runs"], plan["done"], plan["from"]) == (2, 1, "a run that is done")


@pytest.mark.parametrize("other", [{"device": "NVIDIA H200"}, {"cpu": "other"}, {"threads": 999}])
def test_a_run_on_another_machine_tells_no_time(
    tmp_path: Path,
    other: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["reproduce", "quickstart", "-o", str(tmp_path), *TINY]
    assert cli.main([*arguments, "-q"]) == 0
    here = describe_machine(Machine(), torch.device("cpu"))
    there = replace(here, **other)
    monkeypatch.setattr("cayley.lab.runs.describe_machine", lambda *_: there)
    capsys.readouterr()
    assert cli.main([*arguments, "--seeds", "2", "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["runs"], plan["done"]) == (2, 1)
    assert plan["from"].endswith(", as measured here")


def test_runs_that_shared_their_time_tell_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    together = ["train", "quickstart", "-o", str(tmp_path), "--seeds", "2", "--together", "-q"]
    assert cli.main([*together, *TINY]) == 0
    arguments = ["reproduce", "quickstart", "-o", str(tmp_path), "--seeds", "3", *TINY]
    capsys.readouterr()
    assert cli.main([*arguments, "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["runs"], plan["done"]) == (3, 2)
    assert plan["from"].endswith(", as measured here")
    works = [Work(f"{k}", "quickstart", folder, ()) for k, folder in enumerate(find_runs(tmp_path))]
    assert Queue(works, tmp_path / "queue.json").expected_seconds("quickstart") is None


def test_a_plan_of_many_rows_measures_for_some_time_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cayley.lab.commands.planning.MEASURING_SECONDS", 0.0)
    table = ["reproduce", "helfrich2020-figure-2.13", "--tiny", "--device", "cpu"]
    assert cli.main([*table, "-o", str(tmp_path), "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert err.splitlines()[0] == "reading the rows of 1 view"
    assert " rows: measuring steps for about 0 seconds" in err.splitlines()[1]
    *rows, total = out.splitlines()
    assert sum(row.endswith(", as measured here)") for row in rows) == 1
    (measured,) = [row.partition(":")[0] for row in rows if "measured here" in row]
    others = [
        row for row in rows if row.endswith(f", by its operations and the time of {measured})")
    ]
    assert len(others) == len(rows) - 1 > 0
    assert " runs to do: " in total


def test_a_missing_gpu_is_told_before_the_data_and_the_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = ["reproduce", "helfrich2020-table-2.1", "-o", str(tmp_path), "--device", "cuda:99"]
    assert cli.main([*table, "--dry-run"]) == 1
    out, err = capsys.readouterr()
    assert "expected a GPU for the device cuda:99" in err
    assert "measuring" not in err
    assert not out


def test_missing_data_are_told_once_and_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = ["reproduce", "helfrich2020-table-2.1", "-o", str(tmp_path)]
    assert cli.main([*table, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert out.count("mnist is missing: ") == 1
    assert "data missing; time not known without the data" in out
    assert cli.main([*table, "--seeds", "2"]) == 1
    err = capsys.readouterr().err
    assert err.count("expected a folder with the file train-images-idx3-ubyte") == 1
    assert "cayley: expected a folder with the file" in err
    assert not list(tmp_path.iterdir())


def test_what_needs_no_data_runs_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "both.toml").write_text(
        """
        [defaults]
        model = { name = "ScoRNN", hidden = 4 }
        optim = { name = "Adam", lr = 1e-3 }
        training = { batch = 20, steps = 2 }
        [[row]]
        name = "digits"
        task = { name = "mnist" }
        [[row]]
        name = "numbers"
        task = { name = "adding", T = 10, train = 40, valid = 20, test = 20 }
        """
    )
    table = read_table(tmp_path / "both.toml")
    entries = {entry.name: entry for entry in table.entries}
    curves = tuple(Curve(name) for name in entries)
    monkeypatch.setattr("cayley.lab.commands.training.find_curves", lambda _: curves)
    monkeypatch.setattr("cayley.lab.commands.training.find_recipe", entries.__getitem__)
    runs = tmp_path / "runs"
    assert cli.main(["reproduce", "both", "-o", str(runs), "-q", "--seeds", "2"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("2 runs left out, for lack of mnist: expected a folder with the file")
    assert len(err.splitlines()) == 1
    assert {folder.parent.name for folder in find_runs(runs)} == {"numbers"}


def test_the_first_line_comes_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", "quickstart", "-o", str(tmp_path), *TINY, "--seed", "3"]) == 0
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert first == f"quickstart, seed 3: ScoRNN on adding, device cpu, below {tmp_path}"
    assert second.startswith("quickstart, seed 3: 3481 parameters, 3 steps, on cpu")
