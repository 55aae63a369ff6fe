"""Folders of studies, by one that costs nothing."""

import time
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
from processes import CONTEXT

from cayley.lab.errors import NotFinite, RecipeError, RunError
from cayley.lab.runs import Machine, StudyRecord, read_study
from cayley.lab.studies import Measured, Study, find_study, run_study
from cayley.lab.studies.study import Settings, make_panels
from cayley.lab.training import RunSettings


class Counting:
    """A study that counts how often it is computed."""

    def __init__(self) -> None:
        self.seeds: list[int] = []
        self.study = Study("counting", "of seeds", self.compute, self.draw, {"n": 3, "x": 0.5})

    def compute(self, settings: Settings, seed: int, run: RunSettings) -> Measured:
        self.seeds.append(seed)
        return Measured({"n": settings["n"], "curve": [float(seed), settings["x"]]}, None)

    def draw(self, picture: Any, settings: Settings) -> Any:
        return make_panels()[0]

    def run(self, output: Path, **options: Any) -> StudyRecord:
        settings = RunSettings(Machine("cpu", threads=1))
        return run_study(self.study, output, settings=settings, **options)


@pytest.fixture
def counting() -> Counting:
    return Counting()


def test_seeds_that_are_there_are_not_computed_again(counting: Counting, tmp_path: Path) -> None:
    counting.run(tmp_path)
    lines: list[str] = []
    record = counting.run(tmp_path, seeds=3, tell=lines.append)
    assert counting.seeds == [5544, 5545, 5546]
    assert lines[0] == "counting, seed 5544: is there already"
    assert read_study(tmp_path / "counting") == record
    assert record.values("n") == [3.0] * 3
    assert record.values("curve") == record.values("absent") == []
    assert all(one.machine.cores and one.versions["torch"] for one in record.seeds.values())


def test_a_picture_that_is_missing_is_drawn_again(counting: Counting, tmp_path: Path) -> None:
    counting.run(tmp_path, seeds=2)
    (tmp_path / "counting" / "picture.png").unlink()
    counting.run(tmp_path, seeds=2)
    assert counting.seeds == [5544, 5545, 5544]
    assert (tmp_path / "counting" / "picture.png").exists()


def test_other_settings_are_marked_and_do_not_mix(counting: Counting, tmp_path: Path) -> None:
    assert counting.run(tmp_path, changes=["n=4"]).changed == {"n": 4}
    with pytest.raises(RecipeError, match="got other n: choose another --output"):
        counting.run(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [("m=4", "expected a setting of n, x, got 'm'"), ("n=0.5", "n: expected int, got 0.5")],
)
def test_settings_that_are_wrong(
    change: str, message: str, counting: Counting, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=message):
        counting.run(tmp_path, changes=[change])
    assert not counting.seeds


def test_one_seed_is_all_where_nothing_is_random(tmp_path: Path) -> None:
    counting = Counting()
    object.__setattr__(counting.study, "random", False)
    assert len(counting.run(tmp_path, seeds=3).seeds) == 1


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    counting = Counting()
    compute = lambda *_: Measured({"n": float("nan")}, None)  # noqa: E731
    object.__setattr__(counting.study, "compute", compute)
    with pytest.raises(NotFinite, match="counting: expected a finite n, got nan"):
        counting.run(tmp_path)
    assert not (tmp_path / "counting" / "study.json").exists()


def test_a_damaged_file_is_not_written_over(counting: Counting, tmp_path: Path) -> None:
    counting.run(tmp_path)
    (tmp_path / "counting" / "study.json").write_text("{")
    with pytest.raises(RunError, match=r"could not use .*study.json, which is damaged"):
        counting.run(tmp_path)
    assert (tmp_path / "counting" / "study.json").read_text() == "{"


@pytest.mark.slow
def test_seeds_in_processes_of_their_own(tmp_path: Path) -> None:
    study, settings = find_study("rebase"), RunSettings(Machine("cpu", threads=1))
    alone = run_study(study, tmp_path / "a", seeds=3, tiny=True, settings=settings)
    lines: list[str] = []
    found = run_study(
        study, tmp_path / "b", seeds=3, jobs=2, tiny=True, settings=settings, tell=lines.append
    )
    assert read_study(tmp_path / "b" / "rebase") == found
    assert [*found.seeds] == ["5544", "5545", "5546"]
    assert len(lines) == 3
    for seed, one in alone.seeds.items():
        assert found.seeds[seed].numbers == one.numbers
    assert (tmp_path / "b" / "rebase" / "picture.png").exists()


@pytest.mark.slow
def test_a_seed_that_fails_in_its_process_ends_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # processes that need not import torch: how they begin is tried above
    monkeypatch.setattr("cayley.lab.studies.folders.get_context", lambda method: CONTEXT)
    # int takes no settings, and can be sent to another process
    broken: Any = Study("broken", "of integers", int, int)  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(TypeError, match="int"):
        run_study(broken, tmp_path, seeds=3, jobs=2, settings=RunSettings(Machine("cpu")))
    # a thread of the pool sees them end, so that they cannot be waited for here
    end = time.monotonic() + 20
    while active_children() and time.monotonic() < end:
        time.sleep(0.05)
    assert not active_children()
