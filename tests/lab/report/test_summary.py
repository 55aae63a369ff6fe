import json
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
from lab.report.folders import make_recipe, write_run

from cayley.lab.recipes import find_recipe
from cayley.lab.report.reading import read_runs
from cayley.lab.report.rows import Report, Row, label_rows
from cayley.lab.report.summary import find_changes, summarize
from cayley.lab.verdicts import Evidence

SCORES: dict[str, Any] = {
    "scores": {"accuracy": 0.5, "cross_entropy": 1.0},
    "start": {"accuracy": 0.1, "cross_entropy": 2.3},
    "baseline": {"accuracy": 0.1, "cross_entropy": 2.3},
}


def summary(folder: Path) -> Report:
    return summarize(*read_runs([folder]))


def rows(report: Report) -> dict[str, Row]:
    return {row.label: row for section in report.sections for row in section.rows}


def test_seeds_are_averaged_and_settings_are_not(runs: Path) -> None:
    found = rows(summary(runs))
    assert set(found) == {
        "lstm/mnist-128",
        "quickstart (training.steps = 200, not 2500)",
        "scornn/mnist-170",
        "scornn/mnist-170 (model.hidden=64)",
        "scornn/pmnist-170",
        "scornn/timit300-425",
    }
    values = (0.9712, 0.9745, 0.9728)
    (line,) = found["scornn/mnist-170"].lines
    assert line.values == values
    assert (line.mean, line.spread) == (mean(values), stdev(values))
    assert line.gap == mean(values) - 0.973
    assert found["scornn/mnist-170 (model.hidden=64)"].lines[0].values == (0.951,)


def test_a_number_that_two_papers_print_is_one(runs: Path) -> None:
    (line,) = rows(summary(runs))["scornn/mnist-170"].lines
    assert line.published is not None
    assert [source.rpartition(",")[0] for source in line.published.sources] == [
        "Helfrich 2020",
        "Helfrich, Willmott, Ye 2018",
    ]


@pytest.mark.parametrize(
    ("name", "judged"), [("scornn/mnist-170", False), ("scornn/adding-200", True)]
)
def test_files_that_were_not_checked_are_other_data(
    name: str, judged: bool, tmp_path: Path
) -> None:
    """A task that draws its examples has no files that could be others."""
    folder = write_run(tmp_path, find_recipe(name).recipe(), **SCORES)
    text = json.loads((folder / "run.json").read_text())
    text["data"]["check"] = False
    (folder / "run.json").write_text(json.dumps(text))
    ((row,),) = (section.rows for section in summary(tmp_path).sections if section.rows)
    assert bool(row.changes) is not judged
    assert all(line.gap is None for line in row.lines if not line.judged)
    assert all(line.judged is judged for line in row.lines)


def test_a_row_without_numbers_is_there(runs: Path) -> None:
    row = rows(summary(runs))["scornn/pmnist-170"]
    assert (row.seeds, row.unfinished, row.time) == ("0", 1, None)
    assert row.lines[0].mean is None
    assert row.lines[0].published is not None
    assert row.lines[0].published.value == 0.943


def test_speech_has_sound(runs: Path) -> None:
    row = rows(summary(runs))["scornn/timit300-425"]
    assert [(one.quantity.label, one.mean, one.verdict) for one in row.lines] == [
        ("valid MSE", 1.43, "from one seed"),
        ("test SegSNR, dB", 4.2, "from one seed"),
        ("test STOI", 0.82, "equal"),
        ("test MSE", 1.43, ""),
        ("test PESQ", 2.31, ""),
    ]
    assert row.printed == "200k"


def test_what_is_chosen_by_the_test_set_is_marked(runs: Path) -> None:
    found = rows(summary(runs))
    assert found["scornn/mnist-170"].lines[0].optimistic
    assert not any(line.optimistic for line in found["scornn/timit300-425"].lines)


def test_time_of_an_epoch_or_a_step(runs: Path) -> None:
    found = rows(summary(runs))
    assert found["scornn/mnist-170"].time == ("55 s", "an epoch")
    assert found["quickstart (training.steps = 200, not 2500)"].time == ("50 ms", "a step")


@pytest.mark.parametrize("name", ["scornn/mnist-170", "scornn/adding-200"])
def test_time_that_networks_share_is_not_in_a_row(name: str, tmp_path: Path) -> None:
    recipe = find_recipe(name).recipe()
    folders = [write_run(tmp_path, recipe, seed, **SCORES) for seed in (1, 2)]
    time = Row(recipe, (), tuple(read_runs(folders)[0]), (), ()).time
    assert time is not None
    for folder, expected in zip(folders, (time, None), strict=True):
        result = json.loads((folder / "result.json").read_text())
        result |= {"seconds": 9e9, "seconds_per_epoch": 9e9}
        (folder / "result.json").write_text(json.dumps(result))
        description = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps(description | {"together": 2}))
        assert Row(recipe, (), tuple(read_runs(folders)[0]), (), ()).time == expected


def test_environments_are_told_apart(runs: Path) -> None:
    report = summary(runs)
    assert [(one.letter, one.run_count) for one in report.environments] == [("A", 7), ("B", 2)]
    assert dict(report.environments[1].facts)["device"] == "x86_64"
    assert "secret-host" not in str(report.environments)
    assert rows(report)["quickstart (training.steps = 200, not 2500)"].environments == ("B",)


def test_environments_are_in_the_order_of_their_first_runs(runs: Path) -> None:
    path = next((runs / "quickstart").rglob("run.json"))
    description = json.loads(path.read_text())
    path.write_text(json.dumps(description | {"started": "2000-01-01T00:00:00+00:00"}))
    report = summary(runs)
    assert [(one.letter, one.run_count) for one in report.environments] == [("A", 2), ("B", 7)]
    assert rows(report)["quickstart (training.steps = 200, not 2500)"].environments == ("A",)


def test_the_tally_counts_what_kept_its_settings(runs: Path) -> None:
    report = summary(runs)
    assert report.tally == {
        "better": 0,
        "equal": 2,
        "within spread": 0,
        "worse": 0,
        "from one seed": 2,
    }
    # the one of MNIST is in a second paper too
    assert report.places == 5
    assert "4 published numbers measured with the recipe's settings, printed in" in report.sentence
    assert "1 number measured with other settings" in report.sentence
    assert "4 runs not finished or damaged" in report.sentence


def test_one_seed_twice_is_said(tmp_path: Path) -> None:
    recipe = make_recipe("mine", "mine", {"name": "LSTM", "hidden": 8})
    write_run(tmp_path, recipe, **SCORES)
    write_run(tmp_path, recipe, suffix="-copy", **SCORES)
    row = rows(summary(tmp_path))["mine"]
    assert row.seeds == "1 in 2 runs"
    # and is no spread, nor more than one seed in the mean
    assert (row.lines[0].mean, row.lines[0].spread) == (0.5, None)
    write_run(tmp_path, recipe, 7, **SCORES | {"scores": {"accuracy": 0.8, "cross_entropy": 1.0}})
    row = rows(summary(tmp_path))["mine"]
    assert row.seeds == "2 in 3 runs"
    assert row.lines[0].values == (0.8, 0.5)


def test_recipes_that_changed_in_between_are_not_averaged(tmp_path: Path) -> None:
    for seed, hidden in ((1, 8), (2, 9)):
        recipe = make_recipe("mine", "mine", {"name": "LSTM", "hidden": hidden})
        write_run(tmp_path, recipe, seed, **SCORES)
    (section,) = summary(tmp_path).sections
    assert [row.seeds for row in section.rows] == ["1", "1"]
    assert [row.changes for row in section.rows] == [("model.hidden = 8",), ("model.hidden = 9",)]


def test_copies_in_several_files_are_told_apart_by_their_settings(tmp_path: Path) -> None:
    for table, hidden in (("mine", 8), ("copy", 9)):
        recipe = make_recipe("mine", table, {"name": "LSTM", "hidden": hidden})
        write_run(tmp_path / table, recipe, **SCORES)
    report = summary(tmp_path)
    assert {*rows(report)} == {"mine (model.hidden = 8)", "mine (model.hidden = 9)"}
    assert {*label_rows(report.rows)} == {*rows(report)}


@pytest.mark.parametrize("task", ["mnist", "adding"])
def test_recipes_of_one_name_are_told_apart_by_their_tables(task: str, tmp_path: Path) -> None:
    """Recipes of several tasks have too many settings that differ."""
    for table, name in (("one", "mnist"), ("two", task)):
        settings = {"model": {"name": "LSTM", "hidden": 8}, "task": {"name": name}}
        write_run(tmp_path / table, make_recipe("mine", table, **settings), **SCORES)
    report = summary(tmp_path)
    assert [row.changes for row in report.rows] == [(), ()]
    assert label_rows(report.rows) == ["mine (table one)", "mine (table two)"]


def test_a_copy_of_a_packaged_recipe_changes_none_of_its_words(tmp_path: Path) -> None:
    recipe = find_recipe("scornn/mnist-170").recipe()
    copy = replace(recipe, table="copy", model=replace(recipe.model, hidden=8))
    for one in (recipe, copy):
        write_run(tmp_path / one.table, one, **SCORES)
    assert {row.recipe.table: row.changes for row in summary(tmp_path).rows} == {
        recipe.table: (),
        "copy": ("a recipe of one's own",),
    }


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        # the value of the file, as the run without overrides has it
        (("model.hidden=8",), ()),
        # longer since it was started
        (("training.epochs=10",), ()),
        # what both have names the row
        (("training.epochs=10", "model.window=3"), ("model.window=3",)),
    ],
)
def test_runs_of_ones_own_with_equal_settings_are_one_row(
    overrides: tuple[str, ...], words: tuple[str, ...], tmp_path: Path
) -> None:
    recipe = make_recipe("mine", "mine", {"name": "LSTM", "hidden": 8})
    write_run(tmp_path, recipe, 1, overrides=overrides, **SCORES)
    write_run(tmp_path, recipe, 2, overrides=words, **SCORES)
    other = make_recipe("mine", "mine", {"name": "LSTM", "hidden": 9})
    write_run(tmp_path, other, overrides=("model.hidden=9",), **SCORES)
    (section,) = summary(tmp_path).sections
    assert {row.changes: row.seeds for row in section.rows} == {
        words: "2",
        ("model.hidden=9",): "1",
    }


def test_a_setting_that_no_longer_holds_names_no_row(tmp_path: Path) -> None:
    recipe = make_recipe("mine", "mine", {"name": "LSTM", "hidden": 8})
    folder = write_run(tmp_path, recipe, overrides=("training.epochs=10", "seed=3"), **SCORES)
    assert changes(folder) == ("seed=3",)


def test_rows_stand_as_in_the_recipes(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_run(tmp_path, make_recipe(name, "mine", {"name": "LSTM", "hidden": 8}), **SCORES)
    (section,) = summary(tmp_path).sections
    assert [row.recipe.name for row in section.rows] == ["a", "b"]
    assert section.title == "mine"


def changes(folder: Path) -> tuple[str, ...]:
    return find_changes(read_runs([folder])[0][0])


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ((), ()),
        (("model.hidden=64",), ("model.hidden = 64, not 80",)),
        # the same as in the recipe is no change
        (("model.hidden=80",), ()),
        (("optim.recurrent=SGD",), ("optim.recurrent = SGD, not ",)),
        (("bnp.eps=0.1",), ("bnp.eps = 0.1, not none",)),
        (("optim.options.betas=[0.8, 0.9]",), ("optim.options.betas = [0.8, 0.9], not none",)),
        (
            ("training.steps=2", "task.T=20"),
            ("task.T = 20, not 100", "training.steps = 2, not 2500"),
        ),
    ],
)
def test_against_the_recipe(
    tmp_path: Path, overrides: tuple[str, ...], words: tuple[str, ...]
) -> None:
    recipe = find_recipe("quickstart").recipe(overrides=overrides)
    assert changes(write_run(tmp_path, recipe, overrides=overrides, **SCORES)) == words


def test_against_nothing(tmp_path: Path) -> None:
    recipe = make_recipe("mine", "mine", {"name": "LSTM", "hidden": 8})
    assert changes(write_run(tmp_path, recipe, overrides=("model.hidden=8",), **SCORES)) == (
        "model.hidden=8",
    )


def test_a_recipe_of_ones_own_is_not_that_of_a_paper(tmp_path: Path) -> None:
    """Its settings may be any, also if nothing was changed at the start."""
    recipe = find_recipe("scornn/mnist-170").recipe()
    for one in (replace(recipe, name="mine"), replace(recipe, table="mine")):
        write_run(tmp_path, one, **SCORES)
    report = summary(tmp_path)
    assert {row.changes for row in report.rows} == {("a recipe of one's own",)}
    assert not any(report.tally.values())
    assert not Evidence(read_runs([tmp_path])[0]).trials("scornn/mnist-170")


def test_what_no_recipe_says(tmp_path: Path) -> None:
    recipe = find_recipe("quickstart").recipe()
    machine = {"precision": "bf16-mixed"}
    folder = write_run(tmp_path, recipe, tiny=True, machine=machine, **SCORES)
    assert changes(folder) == ("a few made-up examples", "precision bf16-mixed")
