import json
import os
from pathlib import Path

import pytest
import torch
from disk import full_disk

from cayley.lab.errors import RunError
from cayley.lab.recipes import find
from cayley.lab.runs import Run, find_runs, load, read_metrics, read_run, usable


def test_two_processes_cannot_write_one_folder(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        with pytest.raises(RunError, match=f"process {os.getpid()} on .* writes it"):
            Run(tmp_path)
        run.record({"step": 1})
    with Run(tmp_path) as run:
        run.record({"step": 2})
    assert [record["step"] for record in read_metrics(tmp_path)] == [1, 2]


def test_files_are_replaced_as_a_whole(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        run.save("checkpoint.pt", {"W": torch.ones(10, dtype=torch.complex64), "step": 1})
        with (
            full_disk(),
            pytest.raises(RunError, match=r"could not write .*checkpoint.pt: File too"),
        ):
            run.save("checkpoint.pt", {"W": torch.ones(10_000), "step": 2})
    state = load(tmp_path, "checkpoint.pt")
    assert state["step"] == 1
    torch.testing.assert_close(state["W"], torch.ones(10, dtype=torch.complex64))
    assert not list(tmp_path.glob(".*.part"))


def test_a_record_that_does_not_fit(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        run.record({"message": "x" * 900})
        with full_disk(), pytest.raises(RunError, match=r"could not write .*metrics.jsonl"):
            run.record({"message": "y" * 900})
    assert len(list(read_metrics(tmp_path))) == 1


def test_folders_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"Not a directory\. Nothing was written: .*--output$"):
        Run(tmp_path / "file" / "run")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(RunError, match="Permission denied"):
        Run(tmp_path / "run")


def test_metrics_go_back_to_a_mark(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        run.record({"step": 1})
        mark = run.mark()
        run.record({"step": 2})
    with Run(tmp_path) as run:
        run.rewind(mark)
        run.record({"step": 3})
    assert [record["step"] for record in read_metrics(tmp_path)] == [1, 3]


def test_half_a_line_is_no_record(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"ste')
    assert list(read_metrics(tmp_path)) == [{"step": 1}]
    assert list(read_metrics(tmp_path / "nowhere")) == []


@pytest.mark.parametrize(
    "error", [MemoryError(), torch.OutOfMemoryError("Tried to allocate 2 GiB")]
)
def test_too_little_memory_is_nothing_about_a_file(error: Exception, tmp_path: Path) -> None:
    with pytest.raises(type(error)), usable(tmp_path, "checkpoint.pt"):
        raise error


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x80\x02.", b"PK\x03\x04"])
def test_damaged_files_are_named(content: bytes, tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        run.write("checkpoint.pt", content)
        run.write("result.json", content)
        with pytest.raises(RunError, match=r"could not use .*checkpoint.pt, .*: delete it, and"):
            load(tmp_path, "checkpoint.pt")
        with pytest.raises(RunError, match=r"could not use .*result.json, .*: delete it, and"):
            run.read_json("result.json")


def test_half_a_file_is_named(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        run.save("best-valid.pt", {"model": torch.ones(1000)})
        run.write("best-valid.pt", (tmp_path / "best-valid.pt").read_bytes()[:2000])
    with pytest.raises(RunError, match=r"could not use .*best-valid.pt, .*: delete the folder"):
        load(tmp_path, "best-valid.pt")


def test_numbers_must_be_finite(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        with pytest.raises(ValueError, match="not JSON compliant"):
            run.record({"loss": float("nan")})
        with pytest.raises(ValueError, match="not JSON compliant"):
            run.write_json("result.json", {"loss": float("inf")})


def test_a_run_is_described_and_found(tmp_path: Path) -> None:
    recipe = find("quickstart").recipe()
    with Run(tmp_path / "a" / "b") as run:
        run.begin(recipe, {"seed": 3})
    assert find_runs(tmp_path) == [tmp_path / "a" / "b"]
    assert read_run(tmp_path / "a" / "b") == ({"seed": 3}, recipe)
    with pytest.raises(RunError, match="expected a run in"):
        read_run(tmp_path)
    with pytest.raises(RunError, match=r"expected best-valid.pt in"):
        load(tmp_path, "best-valid.pt")
    (tmp_path / "a" / "b" / "run.json").write_text(json.dumps({})[:1])
    with pytest.raises(RunError, match="expected a run in"):
        read_run(tmp_path / "a" / "b")
