import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from lab.report.folders import make_recipe, write_run

from cayley.lab.errors import RunError
from cayley.lab.recipes import find_recipe
from cayley.lab.report.reading import read_runs
from cayley.lab.runs import archive_run
from cayley.lab.runs.machine import Machine
from cayley.lab.training import RunSettings, train

SCORES = {
    "scores": {"mse": 0.5},
    "start": {"mse": 1.0},
    "baseline": {"mse": 1.0},
}
RECIPE = make_recipe("mine", "mine", {"name": "LSTM", "hidden": 8}, task={"name": "adding", "T": 9})


def test_all_runs_are_read_or_named(runs: Path) -> None:
    found, problems = read_runs([runs])
    folders = {path.parent for path in runs.rglob("run.json")}
    assert {run.folder for run in found} == folders - {runs / "broken" / "paper-seed1"}
    assert [run.folder for run in found if run.result is None] == [
        runs / "quickstart" / "paper-seed5545",
        runs / "scornn" / "pmnist-170" / "paper-seed5544",
    ]
    reasons = {str(one.folder.relative_to(runs)): one.reason for one in problems}
    assert len(reasons) == len(problems) == 4
    assert reasons["broken/paper-seed1"].startswith("left out: expected a run in")
    assert reasons["lstm/mnist-128/paper-seed5544"] == (
        "line 5 of metrics.jsonl is damaged and left out"
    )
    damaged = runs / "quickstart" / "paper-seed5545" / "result.json"
    assert reasons["quickstart/paper-seed5545"].startswith(
        f"not in the averages: could not use {damaged}, which is damaged"
    )
    assert reasons["scornn/pmnist-170/paper-seed5544"] == (
        "not finished: step 6600 of 22000; interrupted: after step 6600"
    )


def test_evaluations_are_those_of_the_file(runs: Path) -> None:
    found, _ = read_runs([runs / "lstm"])
    (folder,) = (runs / "lstm").rglob("paper-*")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    good = [json.loads(line) for index, line in enumerate(lines) if index != 4]
    assert list(found[0].evaluations) == [one for one in good if one["kind"] == "eval"]


def test_a_run_below_two_folders_is_read_once(runs: Path) -> None:
    found, problems = read_runs([runs / "scornn", runs, runs / "scornn" / ".." / "scornn"])
    assert len({run.folder.resolve() for run in found}) == len(found) == 9
    assert len(problems) == 4


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('{"kind": "eval", "step": 2, "epoch": 1, "scores": {"test": {"mse": NaN}}}\n', "damaged"),
        ('{"kind": "eval", "step": 2, "epoch": 1, "scores": {"test": {"mse": null}}}\n', "damaged"),
        ('{"kind": "eval", "step": 2, "epoch": 1, "scores": {"test": {"mse": "1"}}}\n', "damaged"),
        (
            '{"kind": "eval", "step": 2, "epoch": 1, "scores": {"test": {"mse": 1e999}}}\n',
            "damaged",
        ),
        ('{"kind": "eval", "step": 2, "epoch": 1, "scores": {"test": {}}}\n', "damaged"),
        ('{"kind": "eval", "step": 2, "epoch": 1, "scores": {}}\n', "damaged"),
        ('{"kind": "eval", "step": 2, "epoch": 1}\n', "damaged"),
        ("[1]\n", "damaged"),
        ("\n", "damaged"),
        ('{"kind": "train", "st', "only half written"),
    ],
)
def test_lines_that_are_no_records(tmp_path: Path, line: str, fault: str) -> None:
    folder = write_run(tmp_path, RECIPE, **SCORES)
    (before,), _ = read_runs([folder])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(line)
    (run,), problems = read_runs([folder])
    assert run.evaluations == before.evaluations
    assert [one.reason for one in problems] == [f"line 42 of metrics.jsonl is {fault} and left out"]


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("run.json", {"format": 3}, "run.json: expected a format of 1 to 2, got 3"),
        ("run.json", {"seed": "x"}, "run.json: seed: expected an integer, got 'x'"),
        (
            "run.json",
            {"baseline": {"test": {"mse": None}}},
            "baseline.test.mse: expected a number",
        ),
        ("result.json", {"audio": {"stoi": "1"}}, "audio.stoi: expected a number, got '1'"),
        ("result.json", {"selected": []}, "selected: expected a table, got []"),
        ("result.json", {"selected": {"test": {"step": 1}}}, "missing key selected.test.epoch"),
        ("result.json", {"seconds": None}, "result.json: seconds: expected a number, got None"),
    ],
)
def test_files_of_another_form(
    tmp_path: Path, name: str, change: dict[str, Any], reason: str
) -> None:
    folder = write_run(tmp_path, RECIPE, **SCORES)
    content = json.loads((folder / name).read_text()) | change
    (folder / name).write_text(json.dumps(content))
    found, problems = read_runs([folder])
    assert not any(run.result for run in found)
    assert len(problems) == 1
    assert reason in problems[0].reason
    assert problems[0].reason.startswith(
        "left out: could not use" if name == "run.json" else "not in the averages: could not use"
    )


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    recipe = make_recipe("mine", "mine", {"name": "LSTM", "hidden": 8}, reported=("no-such",))
    folder = write_run(tmp_path, recipe, **SCORES)
    (folder / "metrics.jsonl").unlink()
    (run,), problems = read_runs([folder])
    assert run.result is not None
    assert [one.reason for one in problems] == [
        "metrics.jsonl is missing: there is no curve to draw",
        "published number 'no-such' is not known here: the run is of another version of cayley",
    ]


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="expected a folder of runs, got"):
        read_runs([tmp_path / "nowhere"])


RESULTS = Path(__file__).parents[3] / "results"


@pytest.mark.skipif(not RESULTS.exists(), reason="the folder results is not here")
def test_archived_runs_are_read_also_of_before_checksums() -> None:
    found, problems = read_runs([RESULTS / "runs/scornn/copying-1000"])
    assert {run.description.format for run in found} == {1, 2}
    assert not problems


@pytest.mark.parametrize("name", ["result.json", "metrics.jsonl", "run.json", "recipe.toml"])
def test_a_file_that_is_not_as_it_was_written_is_said(name: str, tmp_path: Path) -> None:
    recipe = find_recipe("quickstart").recipe(overrides=["training.steps=2"])
    train(recipe, tmp_path / "run", settings=RunSettings(Machine("cpu", threads=1), tiny=True))
    archive_run(tmp_path / "run", tmp_path / "archive", points=2)
    for folder in (tmp_path / "run", tmp_path / "archive"):
        (run,), problems = read_runs([folder])
        assert run.result is not None
        assert not problems
        path = folder / name
        if path.exists():
            content = path.read_bytes()
        else:
            path = folder / f"{name}.gz"
            content = gzip.decompress(path.read_bytes())
        wrong = content.replace(b"0.0", b"0.1")
        assert wrong != content
        path.write_bytes(gzip.compress(wrong) if path.suffix == ".gz" else wrong)
        found, (problem,) = read_runs([folder])
        assert f"could not use {path}, which" in problem.reason
        if name == "metrics.jsonl":
            assert found[0].result == run.result
        else:
            assert not any(one.result for one in found)
            with pytest.raises(RunError, match=name):
                archive_run(folder, tmp_path / "more")
