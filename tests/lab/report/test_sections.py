from pathlib import Path
from typing import Any

import pytest
from lab.report.folders import write_run

from cayley.lab.recipes import find_recipe
from cayley.lab.recipes.views import read_views
from cayley.lab.report.reading import read_runs
from cayley.lab.report.rows import Report, Section
from cayley.lab.report.summary import summarize

SCORES: dict[str, Any] = {
    "scores": {"accuracy": 0.98, "cross_entropy": 0.1},
    "start": {"accuracy": 0.1, "cross_entropy": 2.3},
    "baseline": {"accuracy": 0.1, "cross_entropy": 2.3},
}


def write(folder: Path, name: str, *overrides: str, **more: Any) -> None:
    recipe = find_recipe(name).recipe(overrides=overrides)
    write_run(folder, recipe, overrides=overrides, **SCORES, **more)


def summary(folder: Path) -> Report:
    return summarize(*read_runs([folder]))


def names(section: Section) -> list[str]:
    return [row.label for row in section.rows]


def test_a_row_is_in_every_figure_and_table_that_shows_it(tmp_path: Path) -> None:
    write(tmp_path, "scornn/mnist-170")
    report = summary(tmp_path)
    shown = [view.name for view in report.views if view.is_run]
    assert shown == [
        "helfrich2020-table-2.1",
        "helfrich2020-figure-2.8",
        "scornn2018-table-1",
        "scornn2018-figure-3",
        "scurnn2019-table-1",
        "scurnn2019-figure-2",
        "slides2020-mnist-table",
        "slides2020-mnist-figure",
    ]
    # what another view shows is not shown once more
    assert [section.name for section in report.sections] == [
        "helfrich2020-table-2.1",
        "helfrich2020-figure-2.8",
        "scurnn2019-table-1",
        "scurnn2019-figure-2",
    ]
    assert (report.run_count, len(report.rows)) == (1, 1)
    assert sum(report.tally.values()) == 1


def test_numbers_stand_in_tables_or_in_the_first_figure(tmp_path: Path) -> None:
    write(tmp_path, "scornn/mnist-170")
    write(tmp_path, "lstm/copying-2000")
    sections = {section.name: section for section in summary(tmp_path).sections}
    rows = {name: names(section) for name, section in sections.items()}
    assert rows["helfrich2020-table-2.1"] == rows["scurnn2019-table-1"] == ["scornn/mnist-170"]
    assert rows["helfrich2020-figure-2.8"] == []
    assert rows["helfrich2020-figure-2.13"] == ["lstm/copying-2000"]
    assert rows["scornn2018-figure-1"] == []
    places = [sections[f"helfrich2020-figure-{number}"].elsewhere for number in ("2.8", "2.13")]
    assert [[view.location for view in some] for some in places] == [["Table 2.1"], []]
    assert sections["scornn2018-figure-1"].elsewhere[0].location == "Figure 2.13"


def test_coverage_names_what_was_not_run(tmp_path: Path) -> None:
    write(tmp_path, "scornn/mnist-170")
    write(tmp_path, "scornn/mnist-360", finished=False)
    section = next(one for one in summary(tmp_path).sections if one.name.endswith("figure-2.8"))
    assert section.coverage == "1 of 6 rows run"
    assert [one.words for one in section.missing] == [
        "scornn/mnist-360",
        "scornn/mnist-512",
        "lstm/mnist-256",
        "urnn/mnist-2170",
        "full-urnn/mnist-512",
    ]


def test_other_settings_stand_apart(tmp_path: Path) -> None:
    write(tmp_path, "scornn/mnist-170", "model.hidden=64")
    write(tmp_path, "scornn/pmnist-170", tiny=True)
    write(tmp_path, "lstm/mnist-128", machine={"precision": "bf16-mixed"})
    write(tmp_path, "quickstart")
    report = summary(tmp_path)
    assert not any(view.is_run for view in report.views)
    images, quick = report.sections
    assert (images.name, images.view) == ("helfrich2020-table-2.1-others", None)
    assert images.title == "Pixel MNIST, in rows and permuted: other runs"
    assert names(images) == [
        "scornn/mnist-170 (model.hidden = 64, not 170)",
        "scornn/pmnist-170 (a few made-up examples)",
        "lstm/mnist-128 (precision bf16-mixed)",
    ]
    # nor are they judged
    assert [line.gap for row in images.rows for line in row.lines] == [None, None, None]
    assert (quick.name, names(quick)) == ("quickstart", ["quickstart"])


def test_what_no_figure_shows_is_shown_all_the_same(tmp_path: Path) -> None:
    write(tmp_path, "ornn/adding-200-128")
    (section,) = summary(tmp_path).sections
    assert (section.name, names(section)) == (
        "helfrich2020-figure-2.6-others",
        ["ornn/adding-200-128"],
    )


SIZES = """
[[view]]
paper = "helfrich2020"
location = "Figure 9"
title = "Sizes"
y = ["test_mse"]
curves = [
  { recipe = "quickstart", label = "170" },
  { recipe = "quickstart", label = "64", set = ["model.hidden=64"] },
  { recipe = "quickstart", label = "32", set = ["model.hidden=32"] },
]
"""


def test_a_curve_with_settings_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cayley.lab.report.sections.views", lambda: read_views(SIZES))
    write(tmp_path, "quickstart", "model.hidden=64")
    write(tmp_path, "quickstart", "model.hidden=16", suffix="-16")
    section, others = summary(tmp_path).sections
    assert (section.name, section.coverage) == ("helfrich2020-figure-9", "1 of 3 rows run")
    assert [len(one.rows) for one in section.shown] == [0, 1, 0]
    assert [one.words for one in section.missing] == [
        "quickstart",
        "quickstart --set model.hidden=32",
    ]
    assert names(others) == ["quickstart (model.hidden = 16, not 80)"]
