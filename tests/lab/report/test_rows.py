import math
from dataclasses import replace

import pytest

from cayley.lab.recipes.views import Curve, View
from cayley.lab.report.quantities import Quantity
from cayley.lab.report.rows import Line, PublishedValue, Section, Shown

ACCURACY = Quantity("test", "accuracy")


def line(values: tuple[float, ...], value: float, std: float | None, higher: bool) -> Line:
    return Line(ACCURACY, higher, values, PublishedValue(value, std, ("here",)))


@pytest.mark.parametrize(
    ("values", "value", "std", "higher", "verdict"),
    [
        ((0.5, 0.5), 0.4, None, True, "better"),
        ((0.5, 0.5), 0.4, None, False, "worse"),
        ((0.4, 0.4), 0.5, None, True, "worse"),
        ((0.4, 0.4), 0.5, None, False, "better"),
        ((0.5,), 0.5, None, True, "equal"),
        # one seed tells neither
        ((0.5,), 0.4, None, True, "from one seed"),
        ((0.4,), 0.5, None, True, "from one seed"),
        ((0.4, 0.6), 0.6, None, True, "within spread"),
        ((0.4, 0.6), 0.65, None, True, "worse"),
        ((0.5,), 0.6, 0.11, True, "within spread"),
        ((0.5,), 0.6, 0.09, True, "from one seed"),
        ((0.5, 0.5), 0.6, 0.09, True, "worse"),
    ],
)
def test_verdicts(
    values: tuple[float, ...], value: float, std: float | None, higher: bool, verdict: str
) -> None:
    assert line(values, value, std, higher).verdict == verdict


def test_the_digits_that_are_printed_are_equal() -> None:
    one = PublishedValue(0.962, None, ("here",), 0.0005)
    for values, verdict in (
        ((0.9616, 0.9616), "equal"),
        ((0.9624,), "equal"),
        ((0.9626, 0.9626), "better"),
        ((0.9614, 0.9614), "worse"),
    ):
        assert Line(ACCURACY, True, values, one).verdict == verdict


def test_mean_spread_and_gap() -> None:
    one = line((1.0, 2.0, 6.0), 2.5, None, higher=True)
    assert one.mean == 3.0
    # ((1−3)² + (2−3)² + (6−3)²) / (3 − 1) = 7
    assert one.spread == pytest.approx(math.sqrt(7.0), rel=1e-15)
    assert one.gap == 0.5


def test_other_settings_are_not_judged() -> None:
    one = replace(line((0.5, 0.5), 0.4, None, higher=True), judged=False)
    assert (one.gap, one.verdict) == (None, "")


def test_coverage() -> None:
    view = View("helfrich2020", "Figure 2.17", "Sizes")
    curve = Curve("enrnn/adding-750", "0", ("model.hidden=[96, 0]",))
    section = Section(view.name, view.title, (), view, (Shown(curve, ()),) * 2)
    assert section.coverage == "0 of 2 rows run"
    assert [one.words for one in section.missing] == [
        "enrnn/adding-750 --set model.hidden=[96, 0]",
    ] * 2


def test_nothing_to_compare() -> None:
    assert line((), 0.5, None, higher=True).gap is None
    assert line((), 0.5, None, higher=True).verdict == ""
    assert Line(ACCURACY, True, (0.5,)).verdict == ""
    assert Line(ACCURACY, True, (0.5,)).spread is None


def test_sources() -> None:
    assert PublishedValue(1.0, None, ("a",)).source == "a"
    assert PublishedValue(1.0, None, ("a", "b", "c")).source == "a, and 2 more"
