import os
from pathlib import Path

import pytest
import torch
from disk import full_disk

from cayley.lab.errors import RunError
from cayley.lab.runs import (
    RunFolder,
    load_tensors,
    read_metrics,
)


def test_two_processes_cannot_write_one_folder(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as run:
        with pytest.raises(RunError, match=f"process {os.getpid()} on .* is writing it"):
            RunFolder(tmp_path)
        run.record({"step": 1})
    with RunFolder(tmp_path) as run:
        run.record({"step": 2})
    assert [record["step"] for record in read_metrics(tmp_path)] == [1, 2]


def test_files_are_replaced_as_a_whole(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as run:
        run.save("checkpoint.pt", {"W": torch.ones(10, dtype=torch.complex64), "step": 1})
        with (
            full_disk(),
            pytest.raises(RunError, match=r"could not write .*checkpoint.pt: File too"),
        ):
            run.save("checkpoint.pt", {"W": torch.ones(10_000), "step": 2})
    state = load_tensors(tmp_path, "checkpoint.pt")
    assert state["step"] == 1
    torch.testing.assert_close(state["W"], torch.ones(10, dtype=torch.complex64))
    assert not list(tmp_path.glob(".*.part"))


def test_a_record_that_does_not_fit(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as run:
        run.record({"message": "x" * 900})
        with full_disk(), pytest.raises(RunError, match=r"could not write .*metrics.jsonl"):
            run.record({"message": "y" * 900})
    assert len(list(read_metrics(tmp_path))) == 1


def test_a_disk_that_is_full_at_the_start(tmp_path: Path) -> None:
    with full_disk(0), pytest.raises(RunError, match=r"could not write .*run: File too large\. N"):
        RunFolder(tmp_path / "run")
    # and the lock is free
    with RunFolder(tmp_path / "run") as run:
        assert not run.has("run.json")


def test_folders_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"Not a directory\. Nothing was written: .*--output$"):
        RunFolder(tmp_path / "file" / "run")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(RunError, match="Permission denied"):
        RunFolder(tmp_path / "run")


def test_metrics_go_back_to_a_mark(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as run:
        run.record({"step": 1})
        mark = run.mark()
        run.record({"step": 2})
    with RunFolder(tmp_path) as run:
        run.rewind(mark)
        run.record({"step": 3})
    assert [record["step"] for record in read_metrics(tmp_path)] == [1, 3]


def test_metrics_that_changed_do_not_go_back(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as run:
        run.record({"step": 1})
        run.record({"step": 2})
        mark = run.mark()
    path = tmp_path / "metrics.jsonl"
    whole = path.read_bytes()
    for content, words in ((whole[:-1], "got only 23"), (b"[" + whole[1:] + b"more", "got others")):
        path.write_bytes(content)
        with RunFolder(tmp_path) as run, pytest.raises(RunError, match=words):
            run.rewind(mark)
        assert path.read_bytes() == content
    path.write_bytes(whole + b"more")
    with RunFolder(tmp_path) as run:
        run.rewind(mark)
        run.record({"step": 3})
        after = run.mark()
    with RunFolder(tmp_path) as run:
        run.rewind(after)
    assert [record["step"] for record in read_metrics(tmp_path)] == [1, 2, 3]


def test_numbers_must_be_finite(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as run:
        with pytest.raises(ValueError, match="not JSON compliant"):
            run.record({"loss": float("nan")})
        with pytest.raises(ValueError, match="not JSON compliant"):
            run.write_json("result.json", {"loss": float("inf")})
