import json
from pathlib import Path

import pytest

from cayley.cli import main
from cayley.lab.studies import STUDIES


def test_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "--list"]) == 0
    text = capsys.readouterr().out
    assert all(f"{one.name}: {one.title}\n" in text for one in STUDIES.values())
    assert main(["study", "--list", "--json"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["study"] for one in records] == [*STUDIES]


def test_a_study_and_the_verdict_on_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["study", "modrelu-surface", "-o", str(tmp_path), "--device", "cpu"]
    assert main([*command, "--set", "grid=5"]) == 0
    assert "peak 30.3" in capsys.readouterr().out
    assert main(["verdicts", str(tmp_path), "--json"]) == 0
    found = {one["claim"]: one for one in map(json.loads, capsys.readouterr().out.splitlines())}
    assert found["modrelu-surface"]["leaning"] == "holds"
    assert "with other settings: grid = 5" in found["modrelu-surface"]["words"]
    assert main(["verdicts", str(tmp_path), "--paper", "scurnn"]) == 0
    assert "missing: cayley study modrelu-surface --seeds 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["heatmap"], "did you mean heatmaps?"),
        ([], "see cayley study --list"),
        (["heatmaps", "--set", "q=3"], "heatmaps: expected a setting of T, long"),
    ],
)
def test_wrong_arguments(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", *words, "-o", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_a_damaged_study_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "study.json").write_text("{")
    assert main(["verdicts", str(tmp_path)]) == 4
    assert "which is damaged or of another version" in capsys.readouterr().err
