import json
from pathlib import Path

import pytest

from cayley import cli


def test_every_run_is_told(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", str(runs)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"{len(lines) - 1} runs: 2 damaged, 7 done, 1 stopped"
    (stopped,) = (line for line in lines[:-1] if line.startswith("stopped"))
    assert "scornn/pmnist-170/paper-seed5544" in stopped
    assert cli.main(["status", str(runs), "--json"]) == 0
    facts = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(facts) == len(lines) - 1
    assert {"run", "state", "step", "steps", "message"} == set(facts[0])


def test_a_folder_without_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", str(tmp_path)]) == 4
    assert "expected runs below" in capsys.readouterr().err
