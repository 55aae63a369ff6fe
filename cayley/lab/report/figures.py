"""Learning curves of runs: for the page, for a page without scripts, and for a file."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cayley.lab.report.charts import Curves, draw_curves, static_chart
from cayley.lab.report.quantities import Quantity, find_baseline
from cayley.lab.report.rows import Row, Section
from cayley.lab.wording import number

__all__ = ["VEGALITE", "Figure", "draw_figures"]

WIDTH = 640
# 6.4 shows "undefined" where the tooltip of the nearest point has words (vega-lite #9707)
VEGALITE = "6.1"


@dataclass(frozen=True)
class Figure:
    """Learning curves of a task.

    Attributes:
        name: For a file.
        title: What is drawn.
        caption: What the marks mean, and the baseline.
        spec: The chart in Vega-Lite.
        time: What it is drawn over.
        positive: Whether a logarithmic axis can show all values.
        logarithmic: Whether it does at first.
    """

    name: str
    title: str
    caption: str
    spec: dict[str, Any]
    time: str
    positive: bool
    logarithmic: bool

    def svg(self) -> str:
        """The chart as SVG, in the colour of the text around it."""
        import vl_convert

        return vl_convert.vegalite_to_svg(static_chart(self.spec, width=WIDTH), vl_version=VEGALITE)

    def png(self) -> bytes:
        """The chart as PNG, on white."""
        import vl_convert

        spec = static_chart(self.spec, width=WIDTH, background="white", title=self.title)
        return vl_convert.vegalite_to_png(spec, vl_version=VEGALITE, scale=2)


def draw_figures(section: Section) -> list[Figure]:
    """Draw the curves of a table: rows of the same task and metric share a figure."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in section.rows:
        if any(run.evaluations for run in row.runs):
            task, metric = row.recipe.task, row.runs[0].description.metric
            settings = tuple((key, str(value)) for key, value in sorted(task.settings.items()))
            groups.setdefault((task.name, settings, metric), []).append(row)
    shared = set.intersection(*(set(settings) for _, settings, _ in groups)) if groups else set()
    figures = []
    for (task, settings, _), rows in groups.items():
        own = [f"{key} = {value}" for key, value in settings if (key, value) not in shared]
        figures.append(_draw(section.name, ", ".join((task, *own)), rows))
    return figures


def _draw(table: str, task: str, rows: Sequence[Row]) -> Figure:
    runs = [run for row in rows for run in row.runs]
    first = runs[0].description
    splits = {split for one in runs for record in one.evaluations for split in record["scores"]}
    split = next(split for split in ("test", "valid", "train") if split in splits)
    quantity = Quantity(split, first.metric.name)
    time = "epoch" if all(row.recipe.training.epochs for row in rows) else "step"
    points = [point for row in rows for point in _points(row, quantity)]
    naive = {find_baseline(run, quantity) for run in runs}
    baselines = sorted(value for value in naive if value is not None)
    published = _published(rows, quantity, max(point[time] for point in points))
    values = [*baselines, *(one["value"] for one in (*points, *published))]
    positive = min(values) > 0
    logarithmic = positive and first.metric.better == "lower"
    spec = draw_curves(Curves(quantity.label, time, points, baselines, published, logarithmic))
    caption = "A line a run."
    if baselines:
        shown = ", ".join(map(number, baselines))
        caption += f" Dashed: the baseline, {shown} ({first.baseline_rule})."
    if published:
        caption += " ◂ marks a published value."
    title = f"{task}: {quantity.label}"
    name = re.sub(r"[^a-z0-9.]+", "-", f"{table} {title}".lower()).strip("-")
    return Figure(name, title, caption, spec, time, positive, logarithmic)


def _points(row: Row, quantity: Quantity) -> list[dict[str, Any]]:
    """The evaluations of all runs of a row that have the quantity."""
    return [
        {
            "row": row.label,
            "run": index,
            "seed": f"{run.description.seed}" + ("" if run.result else ", not finished"),
            "step": record["step"],
            "epoch": record["epoch"],
            "value": record["scores"][quantity.split][quantity.metric],
            "loss": record.get("train_loss"),
        }
        for index, run in enumerate(row.runs)
        for record in run.evaluations
        if quantity.metric in record["scores"].get(quantity.split, {})
    ]


def _published(rows: Sequence[Row], quantity: Quantity, end: float) -> list[dict[str, Any]]:
    """The published values of the quantity, each once, at the end of the curves."""
    found: dict[float, str] = {}
    for row in rows:
        for line in row.lines:
            same = (line.quantity.split, line.quantity.metric) == (quantity.split, quantity.metric)
            if line.published is not None and same:
                found.setdefault(line.published.value / line.quantity.scale, row.label)
    return [
        {"row": label, "step": end, "epoch": end, "value": value} for value, label in found.items()
    ]
