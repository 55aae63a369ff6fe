import re
import sys
from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from lab.descriptions import make_description

from cayley import cli
from cayley.lab.commands.training import check_same_run, describe_spread, print_result
from cayley.lab.errors import RunError
from cayley.lab.recipes import find_recipe, tables
from cayley.lab.recipes.views import Curve
from cayley.lab.runs import RunResult, SelectedScores
from cayley.lab.training import RunSettings


@pytest.mark.parametrize(("overrides", "code"), [((), 0), (("task.corpus=own",), 4)])
def test_known_data_are_the_same_anywhere(
    overrides: tuple[str, ...], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = find_recipe("lstm/characters-350").recipe(overrides=[*overrides])
    description = make_description(data={"folder": "/elsewhere"})
    monkeypatch.setattr("cayley.lab.runs.read_run", lambda _: (description, recipe))
    with nullcontext() if code == 0 else pytest.raises(RunError, match="data from /elsewhere"):
        check_same_run(tmp_path, recipe, RunSettings(data=tmp_path))


def test_the_summary_of_a_run_has_its_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = find_recipe("scornn/timit-425").recipe()
    monkeypatch.setattr("cayley.lab.runs.read_run", lambda _: (make_description(), recipe))
    scores = SelectedScores(1, 1.0, {"mse": 1.5}, "valid")
    audio = {"segsnr_db": 4.25, "stoi": 0.8123, "pesq": 2.31}
    result = RunResult(
        status="done", step=1, epoch=1.0, seconds=1.0, selected={"valid": scores}, audio=audio
    )
    print_result(tmp_path, result)
    text = capsys.readouterr().out
    assert "  sound of the test set: SegSNR in dB 4.25, STOI 0.8123, PESQ 2.31\n" in text


def test_the_spread_is_over_runs() -> None:
    results = [
        RunResult(
            status="done",
            step=1,
            epoch=1.0,
            seconds=1.0,
            selected={"test": SelectedScores(1, 1.0, {"mse": value}, "last")},
        )
        for value in (1.0, 3.0)
    ]
    assert describe_spread(results) == "test mse 2 ± 1.414"


@pytest.mark.parametrize(
    ("recipe", "change", "message"),
    [
        ("quickstart", "task.markers=foo", "task.markers: expected 'halves' or 'code', got 'foo'"),
        ("scornn/pmnist-170", "task.order=foo", "task.order: expected 'rows' or 'permuted', got"),
        ("quickstart", "task.T=1000000000", "task.T: expected an integer from 4 to 1,000,000, got"),
        (
            "quickstart",
            "model.hidden=100000000000000000000",
            "model.hidden: expected an integer fr",
        ),
        (
            "quickstart",
            "model.hidden=1000000",
            "quickstart: model: expected a network that fits into",
        ),
        (
            "quickstart",
            "optim.schedule={name='StepLR', step_size=0}",
            "optim.schedule.step_size: expected an integer from 1 to",
        ),
    ],
)
def test_wrong_settings_are_one_line_and_no_folder(
    recipe: str, change: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", recipe, "-q", "--tiny", "--device", "cpu", "--set", change]
    assert cli.main([*words, "-o", str(tmp_path / "runs")]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert message in err
    assert not (tmp_path / "runs").exists()


def test_steps_that_no_one_lives_to_see_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The losses of a thousandth of them would not fit into memory."""
    monkeypatch.setattr("cayley.lab.training.loop.Loop.train", lambda self: sys.exit(5))
    words = ["train", "quickstart", "--tiny", "--device", "cpu", "-o", str(tmp_path), "-q"]
    with pytest.raises(SystemExit, match="5"):
        cli.main([*words, "--set", "training.steps=10000000000000"])
    capsys.readouterr()


def test_what_is_implied_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["gcn/cora-adam", "--set", "training.steps=2", "--task", "photo"]
    line = "training.epochs=0: training.steps=2 takes the place of"
    assert cli.main(["train", *words, "--device", "cpu", "-o", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith(line)
    assert cli.main(["show", *words]) == 0
    assert f"# {line}" in capsys.readouterr().out
    arguments = ["train", *words, "--tiny", "--device", "cpu", "-q", "-o", str(tmp_path)]
    assert cli.main(arguments) == 0
    assert capsys.readouterr() == ("", "")


def test_a_wrong_count_of_parameters_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["show", "quickstart"]) == 0
    shown = capsys.readouterr().out
    mine = tmp_path / "mine.toml"
    mine.write_text(re.sub(r"parameters = \d+", "parameters = 7", shown))
    words = ["train", str(mine), "--tiny", "--device", "cpu", "-o", str(tmp_path / "runs")]
    assert cli.main([*words, "--set", "training.steps=2"]) == 2
    assert "expected a model of 7 parameters, got" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_an_edited_copy_of_a_recipe_has_folders_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Named as with --set, and found again by the same command."""

    def train(recipe: str, *words: str) -> set[str]:
        before = {path.parent for path in tmp_path.rglob("run.json")}
        machine = ["--tiny", "--device", "cpu", "-q", "-o", str(tmp_path)]
        assert cli.main(["train", recipe, *machine, *words]) == 0
        capsys.readouterr()
        return {
            path.parent.name for path in tmp_path.rglob("run.json") if path.parent not in before
        }

    assert cli.main(["show", "quickstart", "--set", "model.hidden=64"]) == 0
    mine = tmp_path / "mine.toml"
    mine.write_text(capsys.readouterr().out)
    assert train("quickstart") == {"tiny-seed5544"}
    assert train(str(mine)) == {"hidden-64-tiny-seed5544"}
    assert train(str(mine), "--seeds", "2") == {"hidden-64-tiny-seed5545"}
    assert train(str(mine), "--seeds", "1", "--set", "model.hidden=80") == set()
    assert train(str(mine), "--set", "optim.lr=0.5") == {"hidden-64-lr-0.5-tiny-seed5544"}
    assert cli.main(["resume", str(tmp_path / "quickstart/hidden-64-tiny-seed5544"), "-q"]) == 0


@pytest.mark.parametrize("variant", ["paper", "code"])
def test_show_names_the_other_variant(variant: str, capsys: pytest.CaptureFixture[str]) -> None:
    entries = [entry for table in tables().values() for entry in table.entries]
    name = next(entry.name for entry in entries if "code" in entry.variants)
    assert cli.main(["show", name, "--variant", variant]) == 0
    other = "code" if variant == "paper" else "paper"
    first = capsys.readouterr().out.splitlines()[0]
    assert first == f"# {name}, variant {variant}; --variant {other} differs"
    assert cli.main(["show", "quickstart"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "# quickstart, variant paper"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[enforce fail at x.cpp:118] data. can't allocate: you tried to allocate 9 b"),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        MemoryError("Unable to allocate 8.00 EiB"),
    ],
)
def test_too_little_memory_is_said_in_a_line(
    error: Exception,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(self: object) -> None:
        raise error

    monkeypatch.setattr("cayley.lab.training.loop.Loop.train", fail)
    words = ["train", "quickstart", "--tiny", "--device", "cpu", "-q", "-o", str(tmp_path)]
    assert cli.main(words) == 1
    err = capsys.readouterr().err
    assert err.startswith("cayley: expected enough memory, got too little")
    assert err.count("\n") == 1
    error.args = ("another failure",)
    if not isinstance(error, MemoryError):
        with pytest.raises(RuntimeError, match="another failure"):
            cli.main([*words, "--seed", "1"])


def test_threads_that_cannot_be_started_are_said_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", "quickstart", "--threads", "100000", "-o", str(tmp_path)]) == 1
    assert "cores, got 100000: choose another number with --threads" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("seed", [-1, 10**30])
def test_a_seed_out_of_range_is_said_in_a_line(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "quickstart", "--tiny", "--device", "cpu", "-o", str(tmp_path)]
    assert cli.main([*words, "--seed", str(seed)]) == 2
    assert f"--seed: expected an integer from 0 to 4,294,967,295, got {seed}" in (
        capsys.readouterr().err
    )


def planned(monkeypatch: pytest.MonkeyPatch, *words: str) -> list[Any]:
    """The jobs that a command would do."""
    jobs: list[Any] = []

    def work(planned: list[Any], options: Namespace, *, again: bool) -> int:
        jobs.extend(planned)
        return 0

    monkeypatch.setattr("cayley.lab.commands.training._work", work)
    assert cli.main(["reproduce", *words]) == 0
    return jobs


def test_a_figure_is_trained_with_all_its_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of other tables, too."""
    jobs = planned(monkeypatch, "helfrich2020-figure-2.12", "--set", "training.batch=5")
    assert [(job.recipe.name, job.recipe.table) for job in jobs] == [
        ("enrnn/adding-750", "helfrich2020-figure-2.12"),
        ("lstm/adding-750", "helfrich2020-figure-2.6"),
        ("spectral-rnn/adding-750", "helfrich2020-figure-2.12"),
        ("scornn/adding-750", "helfrich2020-figure-2.6"),
        ("ornn/adding-750", "helfrich2020-figure-2.6"),
        ("full-urnn/adding-750", "helfrich2020-figure-2.6"),
    ]
    assert {job.overrides for job in jobs} == {("training.batch=5",)}
    assert {job.recipe.training.batch for job in jobs} == {5}


def test_a_table_is_trained_with_its_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = planned(monkeypatch, "pospisil2023-table-2.2")
    assert [(job.recipe.name, job.seed) for job in jobs[2:5]] == [
        ("sage/proteins-adam", 5546),
        ("sage/proteins-sgd", 5544),
        ("sage/proteins-sgd", 5545),
    ]


def test_what_no_figure_shows_is_trained_by_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [job.recipe.name for job in planned(monkeypatch, "quickstart")] == ["quickstart"]


def test_the_code_of_a_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = planned(monkeypatch, "scornn2018-figure-1", "--variant", "code", "--seeds", "1")
    assert len(jobs) == 8
    assert {job.recipe.variant for job in jobs} == {"code"}


def test_curves_of_one_recipe_have_settings_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    curves = (Curve("quickstart"), Curve("quickstart", set=("model.hidden=64",)))
    monkeypatch.setattr("cayley.lab.commands.training.find_curves", lambda _: curves)
    jobs = planned(monkeypatch, "a-figure", "--set", "training.batch=5")
    assert [(job.recipe.model.hidden, job.overrides) for job in jobs] == [
        (80, ("training.batch=5",)),
        (64, ("model.hidden=64", "training.batch=5")),
    ]
