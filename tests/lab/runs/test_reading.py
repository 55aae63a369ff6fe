import re
from pathlib import Path

import pytest
import torch
from lab.descriptions import make_description

from cayley.lab.errors import RunError
from cayley.lab.recipes import find_recipe
from cayley.lab.runs import RunFolder, find_runs
from cayley.lab.runs.reading import (
    explain_damage,
    load_tensors,
    parse_json,
    read_metrics,
    read_result,
    read_run,
)


def test_half_a_line_is_no_record(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"ste')
    assert list(read_metrics(tmp_path)) == [{"step": 1}]
    assert list(read_metrics(tmp_path / "nowhere")) == []


@pytest.mark.parametrize(
    "error", [MemoryError(), torch.OutOfMemoryError("Tried to allocate 2 GiB")]
)
def test_too_little_memory_is_nothing_about_a_file(error: Exception, tmp_path: Path) -> None:
    with pytest.raises(type(error)), explain_damage(tmp_path, "checkpoint.pt"):
        raise error


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x80\x02.", b"PK\x03\x04"])
def test_damaged_files_are_named(content: bytes, tmp_path: Path) -> None:
    with RunFolder(tmp_path) as run:
        run.write("checkpoint.pt", content)
        with pytest.raises(RunError, match=r"could not use .*checkpoint.pt, .*: delete it, and"):
            load_tensors(tmp_path, "checkpoint.pt")
        run.write("result.json", content)
        # a finished run does not start over
        with pytest.raises(RunError, match=r"could not use .*checkpoint.pt, .*: delete the fold"):
            load_tensors(tmp_path, "checkpoint.pt")
        with pytest.raises(RunError, match=r"could not use .*result.json, .*: delete it, and"):
            read_result(tmp_path)


def test_half_a_file_is_named(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as run:
        run.save("best-valid.pt", {"model": torch.ones(1000)})
        run.write("best-valid.pt", (tmp_path / "best-valid.pt").read_bytes()[:2000])
    with pytest.raises(RunError, match=r"could not use .*best-valid.pt, .*: delete the folder"):
        load_tensors(tmp_path, "best-valid.pt")


def test_a_run_is_described_and_found(tmp_path: Path) -> None:
    recipe = find_recipe("quickstart").recipe()
    with RunFolder(tmp_path / "a" / "b") as run:
        run.begin(make_description(seed=7))
    assert find_runs(tmp_path) == [tmp_path / "a" / "b"]
    assert read_run(tmp_path / "a" / "b") == (make_description(seed=7), recipe)
    with pytest.raises(RunError, match="expected a run in"):
        read_run(tmp_path)
    with pytest.raises(RunError, match=r"expected best-valid.pt in"):
        load_tensors(tmp_path, "best-valid.pt")
    (tmp_path / "a" / "b" / "run.json").write_text("{")
    with pytest.raises(RunError, match="expected a run in"):
        read_run(tmp_path / "a" / "b")


@pytest.mark.parametrize("content", [b"", b"\xff", b"a = " + 100_000 * b"[", b'name = "mine"'])
def test_a_recipe_that_cannot_be_read_is_named(content: bytes, tmp_path: Path) -> None:
    with RunFolder(tmp_path) as run:
        run.begin(make_description())
    (tmp_path / "recipe.toml").write_bytes(content)
    with pytest.raises(
        RunError, match=r"could not use .*recipe.toml: .*: delete it to use the original"
    ):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{}", "missing key format"),
        ("[]", r"expected a table, got \[\]"),
        ("null", "expected a table, got None"),
        ('{"format": 3}', "expected a format of 1 to 2, got 3: the run is from another version"),
        ('{"format": 1, "recipe": "a"}', "missing key variant"),
    ],
)
def test_a_description_of_another_form_is_named(content: str, reason: str, tmp_path: Path) -> None:
    with RunFolder(tmp_path) as run:
        run.begin(make_description())
    (tmp_path / "run.json").write_text(content)
    message = rf"could not use .*run.json: {reason}.*: delete the folder, and train once more"
    with pytest.raises(RunError, match=message):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{}", "missing key status"),
        ("[]", r"expected a table, got \[\]"),
        ("null", "expected a table, got None"),
        ('{"status": "done", "step": 1, "epoch": 1, "seconds": 1}', "missing key selected"),
    ],
)
def test_a_result_of_another_form_is_named(content: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(content)
    message = rf"could not use .*result.json: {reason}: delete it, and cayley resume ends"
    with pytest.raises(RunError, match=message):
        read_result(tmp_path)


@pytest.mark.parametrize(
    "digits",
    ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1E+400", "0.1e0400", "1" * 400 + ".5"],
)
def test_json_has_finite_numbers(digits: str) -> None:
    assert parse_json(b'{"mse": 1.5}') == {"mse": 1.5}
    with pytest.raises(ValueError, match=re.escape(f"finite numbers, got {digits}")):
        parse_json(f'{{"mse": {digits}}}'.encode())
