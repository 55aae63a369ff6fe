"""Charts of sweeps in Vega-Lite: history, parallel coordinates, importances."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cayley.lab.report.charts import COLORS, CONFIG
from cayley.lab.report.figures import VEGALITE, WIDTH
from cayley.lab.report.sweeps import SweepResult, Trial, explain_absence, find_importances
from cayley.lab.runs import SearchedKey
from cayley.lab.wording import number

__all__ = ["Chart", "draw_sweep", "place"]

Spec = dict[str, Any]
HEIGHT = 260
PALE = "#b9b9c4"
# of an axis that has no more values, all are named
NAMED = 12


@dataclass(frozen=True)
class Chart:
    """A chart that is shown as it is.

    Attributes:
        name: For a file.
        title: What is drawn.
        caption: What the marks mean.
        spec: The chart in Vega-Lite.
    """

    name: str
    title: str
    caption: str
    spec: Spec

    def png(self) -> bytes:
        """The chart as PNG, on white."""
        import vl_convert

        spec = self.spec | {"width": WIDTH, "background": "white", "title": self.title}
        return vl_convert.vegalite_to_png(spec, vl_version=VEGALITE, scale=2)


def draw_sweep(sweep: SweepResult) -> list[Chart]:
    """The charts of a sweep; none without a finished trial."""
    if not sweep.complete:
        return []
    charts = [_history(sweep), _coordinates(sweep)]
    if not explain_absence(sweep):
        charts.append(_importances(sweep, find_importances(sweep)))
    return charts


def place(one: SearchedKey, value: Any) -> float:
    """Where a value is on the axis of its key, from 0 to 1.

    Example:
        >>> place(SearchedKey("optim.lr", low=1e-4, high=1e-2, log=True), 1e-3)
        0.5
        >>> place(SearchedKey("optim.name", ("Adam", "SGD", "LBFGS")), "LBFGS")
        1.0
    """
    if one.low is None or one.high is None:
        return one.values.index(value) / max(1, len(one.values) - 1)
    if one.log:
        low, high, value = (math.log(end) for end in (one.low, one.high, value))
        return round((value - low) / (high - low), 9)
    return (value - one.low) / (one.high - one.low)


def _history(sweep: SweepResult) -> Chart:
    """Every value over the number of its trial, and the best so far."""
    choose = min if sweep.record.direction == "minimize" else max
    best: float | None = None
    values = []
    for one in sweep.trials:
        if one.value is not None:
            best = one.value if best is None else choose(best, one.value)
            values.append({"trial": one.number, "value": one.value, "best": best})
    positive = all(one["value"] > 0 for one in values)
    scale = {"type": "log", "nice": False} if positive else {"type": "linear"}
    scale = {"type": "linear"} if sweep.record.direction == "maximize" else scale
    x = {"field": "trial", "type": "quantitative", "axis": {"grid": False, "tickMinStep": 1}}
    title = {"title": sweep.label, "scale": scale}
    tooltip = [
        {"field": "trial", "type": "quantitative"},
        {"field": "value", "type": "quantitative", "title": sweep.label, "format": ".4~g"},
    ]
    points = {
        "mark": {"type": "point", "filled": True, "size": 45, "color": COLORS[0], "opacity": 0.8},
        "encoding": {
            "x": x,
            "y": {"field": "value", "type": "quantitative", **title},
            "tooltip": tooltip,
        },
    }
    line = {
        "mark": {"type": "line", "interpolate": "step-after", "color": COLORS[1], "strokeWidth": 2},
        "encoding": {"x": x, "y": {"field": "best", "type": "quantitative", **title}},
    }
    caption = "A point is a finished trial, the line the best so far."
    return _chart(sweep, "history", "Optimisation history", caption, values, [line, points])


def _coordinates(sweep: SweepResult) -> Chart:
    """A line for each trial, through its value on the axis of every setting."""
    keys = sweep.record.keys
    results = [one.value for one in sweep.complete if one.value is not None]
    axes = [one.key for one in keys] + [sweep.label]
    points = [
        {"trial": one.number, "result": one.value, "axis": axis, "place": where, "setting": words}
        for one in reversed(sweep.complete)
        for axis, where, words in _line(one, keys, results, sweep.label)
    ]
    ticks = [tick for one in keys for tick in _ticks(one)]
    for value, where in ((min(results), 0.0), (max(results), 1.0)):
        ticks.append({"axis": sweep.label, "place": where, "setting": number(value)})
    x = {
        "field": "axis",
        "type": "nominal",
        "sort": axes,
        "title": None,
        "scale": {"type": "point", "padding": 0.4},
        "axis": {"labelAngle": 0, "grid": True, "gridOpacity": 0.4, "labelLimit": 160},
    }
    y = {"field": "place", "type": "quantitative", "axis": None, "scale": {"domain": [0, 1]}}
    logarithmic = min(results) > 0 and max(results) > 10 * min(results)
    # both stand out from white and from black
    ends = [COLORS[0], PALE] if sweep.record.direction == "minimize" else [PALE, COLORS[0]]
    color = {
        "field": "result",
        "type": "quantitative",
        "title": sweep.label,
        "scale": {"range": ends, "type": "log" if logarithmic else "linear"},
    }
    tooltip = [
        {"field": "trial", "type": "quantitative"},
        {"field": "result", "type": "quantitative", "title": sweep.label, "format": ".4~g"},
        {"field": "setting", "type": "nominal"},
    ]
    layers = [
        {
            "mark": {"type": "line", "strokeWidth": 1.6, "opacity": 0.8},
            "encoding": {
                "x": x,
                "y": y,
                "color": color,
                "detail": {"field": "trial", "type": "nominal"},
                "tooltip": tooltip,
            },
        },
        {
            "mark": {"type": "point", "filled": True, "size": 22},
            "encoding": {"x": x, "y": y, "color": color, "tooltip": tooltip},
        },
        {
            "data": {"values": ticks},
            "mark": {"type": "text", "align": "left", "dx": 6, "color": "currentColor"},
            "encoding": {"x": x, "y": y, "text": {"field": "setting", "type": "nominal"}},
        },
    ]
    words = ["A line is a finished trial; the bluer, the better."]
    if any(one.conditional for one in keys):
        words.append("Lines leave out settings whose conditions are not met.")
    caption = " ".join(filter(None, (*words, explain_absence(sweep))))
    return _chart(sweep, "coordinates", "Parallel coordinates", caption, points, layers)


def _line(
    one: Trial, keys: Sequence[SearchedKey], results: Sequence[float], label: str
) -> list[tuple[str, float, str]]:
    """The axis, the place and the words of each point of a trial."""
    found = [
        (key.key, place(key, one.params[key.key]), f"{key.key} = {_words(one.params[key.key])}")
        for key in keys
        if key.key in one.params
    ]
    assert one.value is not None
    low, high = min(results), max(results)
    where = (one.value - low) / (high - low) if high > low else 0.5
    return [*found, (label, where, f"{label} = {number(one.value)}")]


def _ticks(one: SearchedKey) -> list[dict[str, Any]]:
    """The values that are named on an axis: all of few, else both ends."""
    values = one.values if one.values else (one.low, one.high)
    if len(values) > NAMED:
        values = (values[0], values[-1])
    return [
        {"axis": one.key, "place": place(one, value), "setting": _words(value)} for value in values
    ]


def _importances(sweep: SweepResult, importances: dict[str, float]) -> Chart:
    values = [{"key": key, "share": share} for key, share in importances.items()]
    encoding = {
        "y": {"field": "key", "type": "nominal", "sort": "-x", "title": None},
        "x": {
            "field": "share",
            "type": "quantitative",
            "title": "share",
            "axis": {"format": "%"},
            "scale": {"domain": [0, 1]},
        },
        "tooltip": [
            {"field": "key", "type": "nominal"},
            {"field": "share", "type": "quantitative", "format": ".1%"},
        ],
    }
    layer = {"mark": {"type": "bar", "color": COLORS[0], "height": 16}, "encoding": encoding}
    count = len(sweep.complete)
    caption = (
        "How much each setting tells the best trials from the others (PED-ANOVA of Optuna, "
        f"{count} finished trials)."
    )
    chart = _chart(sweep, "importances", "Importances", caption, values, [layer])
    chart.spec["height"] = 30 * len(values) + 10
    return chart


def _chart(
    sweep: SweepResult, name: str, title: str, caption: str, values: list[Any], layers: list[Spec]
) -> Chart:
    spec = {
        "width": "container",
        "height": HEIGHT,
        "data": {"values": values},
        "layer": layers,
        "config": CONFIG,
    }
    return Chart(f"{sweep.name}-{name}", title, caption, spec)


def _words(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
