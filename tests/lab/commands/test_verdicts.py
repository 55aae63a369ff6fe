import json
import re
from pathlib import Path

import pytest

from cayley.cli import main, make_parser
from cayley.lab.recipes import published


def test_every_claim_is_in_the_table(
    tmp_path: Path, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "docs" / "verdicts.md"
    assert main(["verdicts", str(runs), "--markdown", str(page), "--json"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["claim"] for one in records] == list(published.claims())
    text = page.read_text()
    assert all(f"### {name}\n" in text for name in published.claims())
    assert "95 claims: " in text
    commands = re.findall(r"^- missing: `(.*?)`$", text, re.MULTILINE)
    assert len(commands) == text.count("- missing: ") > 0
    for command in commands:
        # as it is printed
        assert make_parser().parse_args(command.split()[1:]).seeds >= 3


def test_what_is_missing_is_named_with_its_command(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verdicts", str(runs), "--outcome", "undecided", "--paper", "scornn2018"]) == 0
    text = capsys.readouterr().out
    assert "scornn-copy-1000: undecided\n" in text
    assert "missing: cayley train scornn/copying-1000 --seeds 3\n" in text
    assert "does not hold" not in text


def test_runs_that_are_left_out_are_said(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verdicts", str(runs)]) == 0
    err = capsys.readouterr().err
    assert f"{runs / 'broken' / 'paper-seed1'}: left out: " in err
    assert ": not finished: step " in err


def test_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verdicts", str(tmp_path / "nothing")]) == 4
    assert "expected a folder of runs" in capsys.readouterr().err
