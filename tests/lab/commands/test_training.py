from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from lab.descriptions import make_description

from cayley import cli
from cayley.lab.commands.training import check_same_run, describe_spread
from cayley.lab.errors import RunError
from cayley.lab.recipes import find_recipe
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
        (170, ("training.batch=5",)),
        (64, ("model.hidden=64", "training.batch=5")),
    ]
