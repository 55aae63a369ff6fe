"""Archived runs say what the whole runs said."""

import gzip
import json
import re
import shutil
from pathlib import Path

import pytest

from cayley.cli import main
from cayley.lab.errors import RunError
from cayley.lab.report import read_runs, summarize
from cayley.lab.runs import archive_run, find_state, is_diverged, thin


def records(kind: str, count: int) -> list[dict]:
    return [{"kind": kind, "step": k, "epoch": k / 10, "loss": 1 / (k + 1)} for k in range(count)]


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1000])
def test_curves_keep_their_ends(count: int) -> None:
    event = {"kind": "event", "step": 3, "epoch": 0.3, "event": "resumed", "message": "here"}
    whole = [*records("train", count), event, *records("eval", 5)]
    kept = thin(whole, 8)
    train = [record for record in kept if record["kind"] == "train"]
    assert len(train) == min(count, 8)
    assert train[:1] + train[-1:] == (whole[:1] + whole[count - 1 : count] if count else [])
    assert train == [record for record in whole if record in train]
    assert event in kept
    assert sum(record["kind"] == "eval" for record in kept) == 5
    notes = [record["message"] for record in kept if record.get("event") == "thinned"]
    assert notes == ([f"8 of {count} train records"] if count > 8 else [])


def test_evaluations_are_kept_where_losses_are_thinned() -> None:
    whole = [*records("train", 9), *records("eval", 9)]
    kept = thin(whole, 20, 3)
    assert [record["step"] for record in kept if record["kind"] == "train"] == [0, 4, 8]
    assert [record for record in kept if record["kind"] == "eval"] == whole[9:]
    assert kept[-1]["message"] == "3 of 9 train records"


def test_the_report_of_an_archive_has_the_same_numbers(runs: Path, tmp_path: Path) -> None:
    whole = [path.parent for path in (runs / "scornn").rglob("result.json")]
    for folder in whole:
        archive_run(folder, tmp_path / "archive" / folder.relative_to(runs), points=2)
    ours = summarize(*read_runs([tmp_path / "archive"]))
    theirs = summarize(*read_runs(whole))
    assert ours.sentence == theirs.sentence
    lines = [
        [[line.values for line in row.lines] for section in report.sections for row in section.rows]
        for report in (ours, theirs)
    ]
    assert lines[0] == lines[1]
    files = {path.name for path in (tmp_path / "archive").rglob("*") if path.is_file()}
    assert files == {"recipe.toml", "run.json", "result.json", "metrics.jsonl.gz"}


def test_an_archive_names_no_host_and_no_home(runs: Path, tmp_path: Path) -> None:
    (folder, *_) = (path.parent for path in (runs / "scornn").rglob("result.json"))
    archive_run(folder, tmp_path / "archive")
    before, after = ((one / "run.json").read_text() for one in (folder, tmp_path / "archive"))
    assert "secret-host" in before
    assert "/home/someone/data" in before
    assert "secret-host" not in after
    assert "someone" not in after
    assert '"folder": "data"' in after


@pytest.mark.parametrize("name", ["metrics.jsonl", "result.json"])
def test_a_damaged_run_is_named(runs: Path, tmp_path: Path, name: str) -> None:
    (folder, *_) = (path.parent for path in (runs / "scornn").rglob("result.json"))
    (folder / name).write_text('{"kind": "ev\n')
    with pytest.raises(RunError, match=name):
        archive_run(folder, tmp_path / "archive")
    assert not (tmp_path / "archive").exists()


@pytest.mark.parametrize(
    "content", [b"{}", gzip.compress(b"{}\n" * 99)[:-9]], ids=["not compressed", "cut off"]
)
def test_damaged_metrics_of_an_archive_are_named(
    runs: Path, tmp_path: Path, content: bytes
) -> None:
    (folder, *_) = (path.parent for path in (runs / "scornn").rglob("result.json"))
    archive_run(folder, tmp_path / "archive")
    (tmp_path / "archive" / "metrics.jsonl.gz").write_bytes(content)
    _, (problem, *_) = read_runs([tmp_path / "archive"])
    assert re.search(r"could not use .*metrics.jsonl.*damaged", problem.reason)


def test_an_archive_of_an_archive_is_the_same(runs: Path, tmp_path: Path) -> None:
    (folder, *_) = (path.parent for path in (runs / "scornn").rglob("result.json"))
    first, second = tmp_path / "first", tmp_path / "second"
    archive_run(folder, first, points=3)
    archive_run(first, second)
    for path in first.iterdir():
        assert (second / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("points", [2, 300], ids=["thinned", "whole"])
def test_a_run_that_diverged_is_kept_as_such(points: int, runs: Path, tmp_path: Path) -> None:
    folder = next(iter((runs / "scornn").rglob("result.json"))).parent
    (folder / "result.json").unlink()
    event = {"kind": "event", "step": 7, "epoch": 0.1, "event": "not finite", "message": "loss"}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(event) + "\n")
    archive_run(folder, tmp_path / "archive", points)
    (kept,), (problem,) = read_runs([tmp_path / "archive"])
    assert kept.diverged
    assert (kept.result, kept.step) == (None, 7)
    assert problem.reason.endswith("not finite: loss")
    assert is_diverged(tmp_path / "archive")
    found = find_state(tmp_path / "archive")
    assert (found.state, found.message) == ("failed", "loss")


def test_the_command(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = runs / "scornn", tmp_path / "archive"
    finished = {path.parent.relative_to(source) for path in source.rglob("result.json")}
    (unfinished,) = {
        path.parent.relative_to(source) for path in source.rglob("run.json")
    } - finished
    assert main(["archive", str(source), "-o", str(target)]) == 0
    out = capsys.readouterr().out
    assert f"{len(finished)} runs" in out
    assert f"not finished, left out: {unfinished}" in out
    assert {path.parent.relative_to(target) for path in target.rglob("result.json")} == finished
    assert main(["archive", str(tmp_path / "nothing"), "-o", str(target)]) == 4
    assert "expected runs below" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["metrics.jsonl", "result.json", "run.json"])
def test_a_damaged_run_does_not_keep_the_others_out(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    source, target = runs / "scornn", tmp_path / "archive"
    damaged, *others = sorted(path.parent for path in source.rglob("result.json"))
    if name == "metrics.jsonl":
        # then whether it diverged cannot be told either
        (damaged / "result.json").unlink()
    (damaged / name).write_text('{"kind": "ev\n')
    assert main(["archive", str(source), "-o", str(target)]) == 4
    out, err = capsys.readouterr()
    assert f"archive: {len(others)} run" in out
    assert re.search(rf"left out: .*{damaged.name}.*{name}", err)
    kept = {path.parent.relative_to(target) for path in target.rglob("result.json")}
    assert kept == {folder.relative_to(source) for folder in others}


def test_a_full_disk_ends_the_archive(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "archive").touch()
    assert main(["archive", str(runs / "scornn"), "-o", str(tmp_path / "archive")]) == 4
    assert capsys.readouterr().err.count("could not write") == 1


@pytest.mark.parametrize("below", ["", "inside"])
def test_runs_are_not_overwritten_by_their_archive(
    below: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = runs / "scornn"
    before = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}
    assert main(["archive", str(source), "-o", str(source / below)]) == 4
    assert "expected a folder outside of" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in source.rglob("*") if path.is_file()} == before


def test_nothing_is_left_of_the_archive_before(runs: Path, tmp_path: Path) -> None:
    folder, target = next(iter((runs / "scornn").rglob("result.json"))).parent, tmp_path / "archive"
    archive_run(folder, target)
    names = {path.name for path in target.iterdir()}
    for name in ("README.md", "weights.safetensors", "sample-1.txt", "metrics.jsonl"):
        (target / name).write_text("of another run")
    archive_run(folder, target)
    assert {path.name for path in target.iterdir()} == names


@pytest.mark.parametrize("names", [("README.md", "metrics.jsonl"), ("run.json", "lock")])
def test_files_of_others_are_not_replaced_by_an_archive(
    names: tuple[str, str], runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the user's own nor those of a run that is not archived, of one run or of several."""
    source, target = runs / "scornn", tmp_path / "mine"
    *_, last = sorted(path.parent for path in source.rglob("result.json"))
    for one, place in ((last, target), (source, target / last.relative_to(source))):
        place.mkdir(parents=True)
        for name in names:
            (place / name).write_text("mine")
        assert main(["archive", str(one), "-o", str(target)]) == 4
        assert f"got {place} with other files" in capsys.readouterr().err
        files = [path for path in target.rglob("*") if path.is_file()]
        assert {path.parent for path in files} == {place}
        assert {path.read_text() for path in files} == {"mine"}
        shutil.rmtree(target)
