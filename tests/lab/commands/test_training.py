from contextlib import nullcontext
from pathlib import Path

import pytest
from lab.descriptions import make_description

from cayley.lab.commands.training import check_same_run, describe_spread
from cayley.lab.errors import RunError
from cayley.lab.recipes import find_recipe
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
