import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from cayley.lab.commands import report
from cayley.lab.errors import RunError


def options(runs: Path, folder: Path, **more: Any) -> Namespace:
    files = {"output": folder / "report.html", "json": False}
    files |= dict.fromkeys(("markdown", "figures", "csv", "latex"))
    return Namespace(folders=[runs], **(files | more))


@pytest.mark.slow
def test_everything_is_written(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    markdown, figures = tmp_path / "docs" / "results.md", tmp_path / "docs" / "figures"
    assert report(options(runs, tmp_path, markdown=markdown, figures=figures)) == 0
    assert "9 runs in 6 rows" in capsys.readouterr().out
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    names = [line for line in markdown.read_text().splitlines() if line.startswith("![")]
    assert len(names) == 4
    for line in names:
        path = markdown.parent / line.partition("](")[2].rstrip(")")
        assert path.read_bytes().startswith(b"\x89PNG")


def test_tables_are_files_of_their_own(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(options(runs, tmp_path, csv=tmp_path / "csv", latex=tmp_path / "tex")) == 0
    names = {"verdicts", "coverage", "images", "quickstart", "speech"}
    assert {path.name for path in (tmp_path / "csv").iterdir()} == {f"{one}.csv" for one in names}
    assert {path.name for path in (tmp_path / "tex").iterdir()} == {f"{one}.tex" for one in names}
    assert (tmp_path / "csv" / "verdicts.csv").read_text().count("\n") == 96
    assert '<section id="verdicts">' in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_json_has_all_digits(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report(options(runs, tmp_path, json=True))
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    first = next(one for one in records if one["recipe"] == "scornn/mnist-170")
    assert first["values"] == [0.9712, 0.9745, 0.9728]
    assert first["published"] == 0.973
    # its table and its settings are others than those of the figures
    assert (first["table"], first["views"]) == ("images", [])


def test_nothing_to_report(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"expected runs below .*, got none"):
        report(options(tmp_path, tmp_path))
    with pytest.raises(RunError, match="expected a folder of runs"):
        report(options(tmp_path / "nowhere", tmp_path))


def test_a_place_that_cannot_be_written(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"could not write .*: choose another place"):
        report(options(runs, tmp_path, output=tmp_path / "file" / "report.html"))


@pytest.mark.slow
def test_reports_and_verdicts_need_no_torch(runs: Path, tmp_path: Path) -> None:
    """To import it takes longer than a report of fifty runs."""
    script = (
        "import sys; sys.argv[0] = 'cayley'\n"
        "from cayley import cli\n"
        f"assert cli.main(['report', {str(runs)!r}, '-o', {str(tmp_path / 'r.html')!r}]) == 0\n"
        f"assert cli.main(['verdicts', {str(runs)!r}]) == 0\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
