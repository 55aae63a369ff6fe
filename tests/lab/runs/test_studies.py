import json
from pathlib import Path
from typing import Any

import pytest

from cayley.lab.errors import RunError
from cayley.lab.runs import STUDY_FILE, find_studies, read_study

MACHINE = {"accelerator": "cpu", "precision": "32-true", "threads": 1}
SEED = {"seconds": 1.0, "finished": "", "machine": MACHINE, "versions": {}}
RECORD: dict[str, Any] = {
    "format": 1,
    "study": "heatmaps",
    "title": "of states",
    "claims": ["heatmap-short"],
    "random": True,
    "settings": {"n": 3},
    "changed": {},
    "seeds": {"5544": SEED | {"numbers": {"share": 0.5, "curve": [1.0, 2.0]}}},
}


def write(folder: Path, text: str = json.dumps(RECORD)) -> Path:
    folder.mkdir(parents=True)
    (folder / STUDY_FILE).write_text(text)
    return folder


def test_a_record_is_read(tmp_path: Path) -> None:
    record = read_study(write(tmp_path / "a"))
    assert (record.study, record.settings, record.random) == ("heatmaps", {"n": 3}, True)
    assert record.values("share") == [0.5]
    assert record.values("curve") == record.values("absent") == []


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 2}', '{"format": 1}', '{"format": NaN}'])
def test_a_damaged_file_is_named(text: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"could not use .*study.json, which is damaged"):
        read_study(write(tmp_path / "a", text))
    with pytest.raises(RunError, match=r"expected study.json in .*, got none"):
        read_study(tmp_path)


def test_studies_are_found_below_folders(tmp_path: Path) -> None:
    places = [write(tmp_path / "a" / "x"), write(tmp_path / "b" / "c" / "x")]
    assert find_studies([tmp_path, tmp_path / "a"]) == places
