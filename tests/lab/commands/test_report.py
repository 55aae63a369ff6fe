import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from cayley.lab.commands import report
from cayley.lab.errors import RunError


def options(runs: Path, folder: Path, **more: Any) -> Namespace:
    files = {"output": folder / "report.html", "markdown": None, "figures": None, "json": False}
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
