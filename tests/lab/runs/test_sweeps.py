import json
from pathlib import Path

import pytest

from cayley.lab.errors import RunError
from cayley.lab.runs import SWEEP_FILE, SearchedKey, SweepRecord, find_sweeps, read_sweep

RECORD = SweepRecord(
    study="mine",
    recipe="quickstart",
    metric="valid_mse",
    direction="minimize",
    keys=(SearchedKey("optim.lr", low=1e-4, high=1, log=True), SearchedKey("task.T", (5, 6))),
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "mine"
    folder.mkdir(parents=True)
    (folder / SWEEP_FILE).write_text(json.dumps(RECORD.to_json()))
    assert find_sweeps([tmp_path, tmp_path / "runs"]) == [folder]
    assert read_sweep(folder) == RECORD


@pytest.mark.parametrize("text", ["", "{}", '{"study": 3}'])
def test_what_is_damaged_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / SWEEP_FILE).write_text(text)
    with pytest.raises(RunError, match=r"could not use .*sweep\.json"):
        read_sweep(tmp_path)
