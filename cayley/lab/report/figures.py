"""Learning curves of runs, as in a published figure or by task, for the page or a file."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from cayley.lab.recipes.views import Panel
from cayley.lab.report.charts import TIMES, Curves, Trace, draw_curves, static_chart, zoom
from cayley.lab.report.curves import read_curves, shorten
from cayley.lab.report.quantities import Quantity, find_baseline, is_higher_better
from cayley.lab.report.reading import MeasuredRun
from cayley.lab.report.rows import Row, Section, label_rows
from cayley.lab.wording import number

__all__ = ["VEGALITE", "WIDTH", "Figure", "draw_comparison", "draw_figures", "draw_tasks"]

WIDTH = 640
POINTS = 150
# more lines in one chart cannot be distinguished
MOST_LINES = 16
# 6.4 shows "undefined" where the tooltip of the nearest point has words (vega-lite #9707)
VEGALITE = "6.1"


@dataclass(frozen=True)
class Figure:
    """A chart of learning curves.

    Attributes:
        name: For a file.
        title: What is drawn.
        caption: The meaning of the marks, and the baseline.
        spec: The chart in Vega-Lite.
        time: The initial horizontal axis.
        times: The horizontal axes to choose from, and their labels.
        positive: Whether a logarithmic axis can show all values.
        logarithmic: Whether the axis is logarithmic at first.
        zoom: The range where the curves end, if that is shown at first.
    """

    name: str
    title: str
    caption: str
    spec: dict[str, Any]
    time: str
    times: Mapping[str, str]
    positive: bool
    logarithmic: bool
    zoom: tuple[float, float] | None = None

    def png(self) -> bytes:
        """The chart as PNG, on white."""
        import vl_convert

        spec = static_chart(self.spec, width=WIDTH, background="white", title=self.title)
        return vl_convert.vegalite_to_png(spec, vl_version=VEGALITE, scale=2)


def draw_figures(sections: Sequence[Section]) -> dict[str, list[Figure]]:
    """Draw the curves of sections: the panels of figures, and other rows by task and metric.

    The section of a table has charts of the rows that no figure shows.

    Returns:
        The charts, by the name of the section.
    """
    drawn = {
        id(row)
        for section in sections
        if section.view is not None and section.view.panel
        for one in section.shown
        for row in one.rows
    }
    figures: dict[str, list[Figure]] = {}
    for section in sections:
        if section.view is not None and section.view.panel:
            panels = [_draw_panel(section, panel) for panel in section.view.panel]
            figures[section.name] = [figure for figure in panels if figure is not None]
        else:
            rows = [row for row in section.rows if id(row) not in drawn]
            figures[section.name] = draw_tasks(section.name, rows)
    return figures


def draw_tasks(name: str, rows: Iterable[Row], quantity: Quantity | None = None) -> list[Figure]:
    """Charts of rows: those of the same task and metric share one.

    Arguments:
        name: For files.
        rows: What to draw.
        quantity: What to draw; None for the deciding metric, on the test set if there is one.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if any(run.evaluations for run in row.runs):
            task, metric = row.recipe.task, row.runs[0].description.metric
            settings = tuple((key, str(value)) for key, value in sorted(task.settings.items()))
            groups.setdefault((task.name, settings, metric), []).append(row)
    shared = set.intersection(*(set(settings) for _, settings, _ in groups)) if groups else set()
    figures = []
    for (task, settings, _), some in groups.items():
        own = [f"{key} = {value}" for key, value in settings if (key, value) not in shared]
        title = ", ".join((task, *own))
        figures.append(draw_comparison(name, title, some, quantity or _usual_quantity(some)))
    return [figure for figure in figures if figure is not None]


def _usual_quantity(rows: Iterable[Row]) -> Quantity:
    runs = [run for row in rows for run in row.runs]
    splits = {split for one in runs for record in one.evaluations for split in record["scores"]}
    split = next(split for split in ("test", "valid", "train") if split in splits)
    return Quantity(split, runs[0].description.metric.name)


def _draw_panel(section: Section, panel: Panel) -> Figure | None:
    """A panel as in the paper; None if nothing of it was run."""
    assert section.view is not None
    found = {(one.curve.recipe, one.curve.set): one.rows for one in section.shown}
    labels = [curve.label or curve.recipe for curve in panel.curves]
    rows = [
        (f"{label}, code" if row.recipe.variant == "code" else label, row)
        for label, curve in zip(labels, panel.curves, strict=True)
        for row in found[curve.recipe, curve.set]
    ]
    title = ", ".join(filter(None, (section.view.location, panel.title)))
    quantities = [Quantity.parse(name) for name in panel.y]
    axes = _Axes(quantities, panel.x, panel.scale, panel.end, labels)
    return _draw(section.view.paper, title, rows, axes)


def draw_comparison(
    name: str, title: str, rows: Sequence[Row], quantity: Quantity
) -> Figure | None:
    """Some rows in one chart, labelled by their differences; of many rows, the best ones.

    Arguments:
        name: For a file.
        title: What is drawn.
        rows: The rows, all of one task.
        quantity: What to draw.

    Returns:
        The chart; None if no row has values.
    """
    ends = [_end(row, quantity) for row in rows]
    found = [
        (end, label, row)
        for end, label, row in zip(ends, label_rows(rows), rows, strict=True)
        if end is not None
    ]
    if not found:
        return None
    higher = is_higher_better(rows[0].runs[0], quantity)
    ordered = sorted((end for end, _, _ in found), reverse=higher)
    note = ""
    if len(found) > MOST_LINES:
        last = ordered[MOST_LINES - 1]
        found = [one for one in found if one[0] == last or (one[0] > last) == higher]
        note = f"The {len(found)} rows of {len(ordered)} that end best; others: Compare, below."
    chosen = [(label, row) for _, label, row in found]
    time = "epoch" if all(row.recipe.training.epochs for row in rows) else "step"
    axes = _Axes([quantity], time, "zoom" if higher else "log", note=note)
    return _draw(name, title, chosen, axes)


def _end(row: Row, quantity: Quantity) -> float | None:
    """The last value of a row, averaged over seeds; None if there is none."""
    curves = read_curves(row.runs, quantity, POINTS)
    return None if curves is None else fmean(values[-1] for values in curves.values)


@dataclass(frozen=True)
class _Axes:
    quantities: Sequence[Quantity]
    time: str
    scale: str
    end: float = 0.0
    order: Sequence[str] = ()
    note: str = ""

    @property
    def label(self) -> str:
        """The label of the values; several quantities are those of several splits."""
        first = self.quantities[0]
        return first.label if len(self.quantities) == 1 else Quantity("", first.metric).label


def _draw(table: str, title: str, rows: Sequence[tuple[str, Row]], axes: _Axes) -> Figure | None:
    """A chart of some rows, each with its label; None if they have no values."""
    traces = []
    for label, row in rows:
        for quantity in axes.quantities:
            part = quantity.split if len(axes.quantities) > 1 else ""
            trace = _trace(label, part, row.runs, quantity)
            if trace is not None:
                traces.append(_cut(trace, axes.time, axes.end))
    if not traces:
        return None
    runs = [run for _, row in rows for run in row.runs]
    naive = {find_baseline(run, quantity) for run in runs for quantity in axes.quantities}
    baselines = _distinct(value for value in naive if value is not None)
    ends = {key: [getattr(one, key)[-1] for one in traces] for key in TIMES}
    last = {
        key: max((end for end in some if end is not None), default=None)
        for key, some in ends.items()
    }
    published = _published(rows, axes.quantities, last)
    printed = [one["value"] for one in published]
    positive = min([*baselines, *printed, *(value for one in traces for value in one.low)]) > 0
    domain = None
    if axes.scale == "zoom":
        low, high = zoom(traces, printed, higher=is_higher_better(runs[0], axes.quantities[0]))
        domain = (low, high) if low < high else None
    logarithmic = positive and axes.scale == "log"
    curves = Curves(
        axes.label, axes.time, traces, baselines, published, logarithmic, domain, axes.order
    )
    title = f"{title}: {axes.label}"
    name = re.sub(r"[^a-z0-9.]+", "-", f"{table} {title}".lower()).strip("-")
    caption = " ".join((_caption(curves, runs[0].description.baseline_rule), axes.note)).strip()
    spec = draw_curves(curves)
    times = {key: words for key, words in TIMES.items() if last[key] is not None}
    return Figure(name, title, caption, spec, axes.time, times, positive, logarithmic, domain)


def _caption(curves: Curves, rule: str) -> str:
    words = ["A line a run."]
    if any(line.low != line.high for line in curves.lines):
        words = ["A line is the mean over seeds, its band from the lowest to the highest."]
    if len(curves.parts) > 1:
        *first, last = curves.parts
        words.append(f"Dashed lines: {', '.join(first)}; solid ones: {last}.")
    if curves.baselines:
        low, high = curves.domain or (-math.inf, math.inf)
        inside = any(low <= value <= high for value in curves.baselines)
        where = "Straight and dashed" if inside else "Outside"
        words.append(f"{where}: the baseline, {', '.join(map(number, curves.baselines))} ({rule}).")
    if curves.published:
        words.append("◂ marks a published value.")
    if any(curves.timed) and not all(curves.timed):
        words.append("Networks that took their steps side by side have no minutes of their own.")
    if any(len(line.step) == POINTS for line in curves.lines):
        words.append(f"Long curves are thinned to {POINTS} points.")
    return " ".join(words)


def _trace(label: str, part: str, runs: Sequence[MeasuredRun], quantity: Quantity) -> Trace | None:
    """The mean, the minimum and the maximum over seeds."""
    curves = read_curves(runs, quantity, POINTS)
    if curves is None:
        return None
    columns = [*zip(*curves.values, strict=True)]
    return Trace(
        label,
        part,
        curves.words,
        step=curves.step,
        epoch=curves.epoch,
        time=curves.time,
        value=tuple(shorten(fmean(some)) for some in columns),
        low=tuple(map(min, columns)),
        high=tuple(map(max, columns)),
    )


def _cut(trace: Trace, time: str, end: float) -> Trace:
    """A trace up to the end of a figure's axis; 0 for all of it."""
    if not end:
        return trace
    count = sum(place <= end * (1 + 1e-9) for place in getattr(trace, time))
    columns = ("step", "epoch", "time", "value", "low", "high")
    cut = {name: getattr(trace, name)[:count] for name in columns}
    return Trace(trace.row, trace.part, trace.seeds, **cut)


def _distinct(values: Iterable[float]) -> list[float]:
    """Values without those that look equal: splits have nearly the same baseline."""
    return list({number(value): value for value in sorted(values, reverse=True)}.values())[::-1]


def _published(
    rows: Sequence[tuple[str, Row]], quantities: Sequence[Quantity], last: dict[str, float | None]
) -> list[dict[str, Any]]:
    """The published values of the quantities, each once, at the end of the curves."""
    wanted = {(quantity.split, quantity.metric) for quantity in quantities}
    found: dict[float, str] = {}
    for label, row in rows:
        for line in row.lines:
            same = (line.quantity.split, line.quantity.metric) in wanted
            if line.published is not None and line.judged and same:
                found.setdefault(line.published.value / line.quantity.scale, label)
    return [{"row": label, "value": value} | last for value, label in found.items()]
