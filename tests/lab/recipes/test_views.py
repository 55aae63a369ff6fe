import re
from collections import Counter
from pathlib import Path

import pytest
import torch

from cayley.lab.errors import RecipeError
from cayley.lab.models import build_model
from cayley.lab.recipes import published, tables
from cayley.lab.recipes.views import Curve, find_view, make_name, read_views, reasons, views
from cayley.lab.report.quantities import Quantity
from cayley.lab.training import RunSettings, build_task

SEEDS = Path(__file__).parents[3].parent / "shared" / "seeds"
FILES = {"helfrich2020": "000", "scornn2018": "001", "scurnn2019": "002", "pospisil2023": "004"}


def numbers(kind: str, chapter: str, last: int) -> list[str]:
    return [f"{kind} {chapter}{number}" for number in range(1, last + 1)]


# what the documents print, by number
PRINTED = {
    "helfrich2020": [
        *numbers("Figure", "1.", 9),
        *numbers("Figure", "2.", 18),
        *numbers("Figure", "3.", 3),
        *numbers("Table", "2.", 5),
    ],
    "scornn2018": [*numbers("Figure", "", 5), *numbers("Table", "", 3)],
    "scurnn2019": [*numbers("Figure", "", 5), *numbers("Table", "", 2)],
    "pospisil2023": [
        *numbers("Figure", "1.", 4),
        *numbers("Figure", "2.", 9),
        *numbers("Figure", "3.", 12),
        *numbers("Table", "2.", 6),
        *numbers("Table", "3.", 5),
        "Table 4.1",
    ],
    # not numbered there
    "slides2020": [
        "Gradient Analysis figure",
        "Adding Problem figure",
        "Copying Problem figure",
        "TIMIT figure",
        "TIMIT table",
        "Character PTB table",
        "MNIST table",
        "MNIST figure",
    ],
}
# numbers in the text
SECTIONS = {("helfrich2020", "Section 2.7")}


@pytest.mark.parametrize("paper", PRINTED)
def test_every_figure_and_table_is_a_view_or_has_a_reason(paper: str) -> None:
    shown = [view.location for view in views().values() if view.paper == paper]
    listed = [name for one in reasons() if one.paper == paper for name in one.locations]
    further = [location for name, location in SECTIONS if name == paper]
    assert Counter(shown + listed) == Counter(PRINTED[paper] + further)
    assert all(one.reason for one in reasons())


@pytest.mark.parametrize("paper", FILES)
def test_what_the_documents_print(paper: str) -> None:
    if not SEEDS.is_dir():
        pytest.skip(f"no {SEEDS}: it belongs to the project, not to the package")
    (path,) = SEEDS.glob(f"{FILES[paper]}_*.txt")
    text = path.read_text(encoding="utf-8")
    captions = re.findall(r"^((?:Figure|Table) \d+(?:\.\d+)?):", text, re.MULTILINE)
    assert set(captions) == set(PRINTED[paper])


def test_every_printed_number_that_a_recipe_reports_is_in_a_view() -> None:
    for table in tables().values():
        for entry in table.entries:
            for id in entry.recipe().reported:
                one = published.result(id)
                view = find_view(make_name(one.paper, one.location.partition(",")[0]))
                assert Curve(entry.name) in view.curves


def test_every_statement_about_a_figure_has_recipes_there_or_the_figure_a_reason() -> None:
    serving: dict[str, set[str]] = {}
    for table in tables().values():
        for entry in table.entries:
            for id in entry.recipe().claims:
                serving.setdefault(id, set()).add(entry.name)
    listed = {make_name(one.paper, location) for one in reasons() for location in one.locations}
    for claim in published.claims().values():
        if place := re.fullmatch(r"(Figure [\d.]+)( left| right| top| bottom)?", claim.location):
            name = make_name(claim.paper, place[1])
            if name not in listed and claim.id in serving:
                assert serving[claim.id] & {curve.recipe for curve in find_view(name).curves}


@pytest.mark.parametrize("name", views())
def test_recipes_have_what_a_view_shows(name: str) -> None:
    view = find_view(name)
    assert view.curves
    assert view.title
    for panel in view.panel:
        for curve in panel.curves:
            recipe = curve.resolve()
            task = build_task(recipe.task, RunSettings())
            for quantity in map(Quantity.parse, panel.y):
                assert quantity.split in recipe.evaluation.splits
                assert quantity.metric in [metric.name for metric in task.metrics]
            assert panel.x != "epoch" or recipe.training.epochs
            length = {"epoch": recipe.training.epochs, "step": recipe.training.steps}
            assert panel.end <= length[panel.x]


def test_changed_settings_can_be_built() -> None:
    for curve in {curve for view in views().values() for curve in view.curves if curve.set}:
        recipe = curve.resolve()
        model = build_model(recipe.model, build_task(recipe.task, RunSettings()))
        output, _ = model(torch.zeros(3, 2, 2))
        assert output.shape[-2:] == (2, 1)


@pytest.mark.parametrize("name", [view.name for view in views().values() if view.same_as])
def test_what_is_the_same_shows_no_less(name: str) -> None:
    view = find_view(name)
    others = [find_view(other) for other in view.same_as]
    assert not any(other.same_as for other in others)
    assert {curve.recipe for curve in view.curves} <= {
        curve.recipe for other in others for curve in other.curves
    }


def test_a_table_has_the_recipes_that_report_its_numbers() -> None:
    view = find_view("pospisil2023-table-2.1")
    assert [curve.recipe for curve in view.curves] == [
        "gcn/cora-adam",
        "gcn/cora-sgd",
        "gcn/cora-sgd-bnp",
    ]
    assert find_view("helfrich2020-section-2.7").curves == (
        Curve("enrnn/characters-3-layers"),
        Curve("lstm/characters-3-layers"),
    )


def test_a_table_names_the_rows_that_no_recipe_serves() -> None:
    listed = find_view("helfrich2020-table-2.5").not_runnable
    assert listed["GORU 512"].startswith("Quoted from another paper")
    assert "LSTM 350" not in listed


def test_a_curve_of_two_panels_is_one() -> None:
    view = find_view("pospisil2023-figure-2.8")
    assert sum(len(panel.curves) for panel in view.panel) == 32
    assert len(view.curves) == 30
    assert view.source == "Pospisil 2023, Figure 2.8"


def test_names_that_are_no_view() -> None:
    with pytest.raises(RecipeError, match=r"did you mean helfrich2020-figure-2\.12"):
        find_view("helfrich2020-fig-2.12")
    with pytest.raises(
        RecipeError, match=r"has nothing to train. A study: cayley study gradient-stability"
    ):
        find_view("helfrich2020-figure-2.11")
    with pytest.raises(RecipeError, match="see cayley list --views"):
        find_view("something")


VIEW = """
[[view]]
paper = "helfrich2020"
location = "Figure 9"
title = "Something"
y = ["test_mse"]
curves = [{ recipe = "quickstart", label = "one" }]
"""


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("curves", "curvs", "helfrich2020 Figure 9: unknown key curvs"),
        ('"quickstart"', '"quickstar"', "did you mean quickstart"),
        ('label = "one"', 'label = "one", variant = "code"', "expected a variant that it has"),
        ('"test_mse"', '"mse"', "expected a split and a metric, such as test_mse, got 'mse'"),
        ("title", 'x = "year"\ntitle', "x: expected 'epoch' or 'step', got 'year'"),
        ("title", 'same_as = ["nothing"]\ntitle', "same_as: expected a view, got 'nothing'"),
        ("[{", '[{ recipe = "quickstart", label = "one" }, {', "expected unique labels"),
        ("[[view]]", VIEW + "[[view]]", "expected each figure and table once, got it twice"),
    ],
)
def test_errors(old: str, new: str, error: str) -> None:
    assert list(read_views(VIEW)) == ["helfrich2020-figure-9"]
    with pytest.raises(RecipeError, match=error):
        read_views(VIEW.replace(old, new))


def test_panels_share_what_stands_beside_them() -> None:
    text = (
        VIEW + '[[view.panel]]\ntitle = "a"\n[[view.panel]]\ny = ["valid_mse"]\nscale = "linear"\n'
    )
    one, two = read_views(text)["helfrich2020-figure-9"].panel
    assert (one.title, one.y, one.scale) == ("a", ("test_mse",), "log")
    assert (two.title, two.y, two.scale) == ("", ("valid_mse",), "linear")
    assert one.curves == two.curves == (Curve("quickstart", "one"),)
