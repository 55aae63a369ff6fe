"""Learning curves in Vega-Lite, from plain records.

The specifications are written directly: Altair, which checks every point against its schema, took a
third of a second per chart.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = [
    "COLORS",
    "CONFIG",
    "DASHES",
    "LEGEND",
    "TIMES",
    "Curves",
    "Trace",
    "draw_curves",
    "static_chart",
    "zoom",
]

Spec = dict[str, Any]

# of medium lightness, so that they are visible on white and on black
COLORS = ("#3b7dd8", "#d9742b", "#3a9d5d", "#b65cc0", "#b8901c", "#d1495b", "#2a9d98", "#85858f")
DASHES = ([1, 0], [6, 3], [2, 2], [8, 2, 2, 2])
# the columns of a legend whose labels are all shorter; longer ones have a line each
LEGEND = ((16, 4), (30, 2))
FONT = "system-ui, sans-serif"
HEIGHT = 300
# the horizontal axes, and their labels
TIMES = {"step": "step", "epoch": "epoch", "time": "minutes of training"}
COLUMNS = (*TIMES, "value", "low", "high")
# lines and words have the colour of the text around a chart
CONFIG: Spec = {
    "background": "transparent",
    "font": FONT,
    "padding": 4,
    "scale": {"zero": False},
    "view": {"stroke": None, "clip": False},
    "axis": {
        "labelColor": "currentColor",
        "labelFontSize": 11,
        "titleColor": "currentColor",
        "titleFontSize": 11,
        "titleFontWeight": "normal",
        "gridColor": "currentColor",
        "gridOpacity": 0.1,
        "domain": False,
        "tickColor": "currentColor",
        "tickOpacity": 0.3,
        "tickCount": 6,
    },
    "legend": {
        "labelColor": "currentColor",
        "labelFontSize": 12,
        "titleColor": "currentColor",
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    },
}


@dataclass(frozen=True)
class Trace:
    """Values over time: mean, minimum and maximum over seeds.

    Attributes:
        row: The row that it belongs to.
        part: Which of several quantities; empty if there is one.
        seeds: The seeds, in words.
        step, epoch: The positions of the values.
        time: The same in minutes; None if it was shared with others.
        value, low, high: The values.
    """

    row: str
    part: str
    seeds: str
    step: tuple[int, ...]
    epoch: tuple[float, ...]
    time: tuple[float | None, ...]
    value: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Curves:
    """The content of a chart.

    Attributes:
        label: The label of the values.
        time: The horizontal axis: a key of :data:`TIMES`.
        lines: A line for each row and part.
        baselines: Values of the naive predictor.
        published: Records with ``row``, ``value`` and the times.
        logarithmic: Whether the axis of the values is, at first.
        domain: The initial range of that axis; None for that of the values.
        order: Rows in the order of the colours, including some that are not here, so that colours
            do not change when they are added.
    """

    label: str
    time: str
    lines: Sequence[Trace]
    baselines: Sequence[float] = ()
    published: Sequence[dict[str, Any]] = ()
    logarithmic: bool = False
    domain: tuple[float, float] | None = None
    order: Sequence[str] = ()

    @property
    def rows(self) -> list[str]:
        """In the order of the lines."""
        return list(dict.fromkeys(line.row for line in self.lines))

    @property
    def timed(self) -> list[bool]:
        """Which lines have a time."""
        return [None not in line.time for line in self.lines]

    @property
    def places(self) -> list[int]:
        """The places of the rows in the order of the colours."""
        order = list(dict.fromkeys((*self.order, *self.rows)))
        return [order.index(row) for row in self.rows]

    @property
    def parts(self) -> list[str]:
        """The same for the quantities."""
        return list(dict.fromkeys(line.part for line in self.lines))


def zoom(lines: Sequence[Trace], further: Sequence[float], *, higher: bool) -> tuple[float, float]:
    """The range where the curves end: every line is inside for three quarters of its points.

    Arguments:
        lines: The lines.
        further: Further values that must be inside.
        higher: Whether higher values are better.

    Example:
        >>> times = {"step": (0, 1, 2, 3), "epoch": (0.0, 1.0, 2.0, 3.0), "time": 4 * (0.0,)}
        >>> accuracy = (0.1, 0.9, 0.96, 0.97)
        >>> line = Trace("a", "", "1", value=accuracy, low=accuracy, high=accuracy, **times)
        >>> zoom([line], [0.98], higher=True)
        (0.9, 0.98)
    """
    quarter = [sorted(line.value, reverse=not higher)[len(line.value) // 4] for line in lines]
    if higher:
        return min([*quarter, *further]), max([*further, *(max(line.high) for line in lines)])
    return min([*further, *(min(line.low) for line in lines)]), max([*quarter, *further])


def draw_curves(curves: Curves) -> Spec:
    """A chart that fills the available width, in the text colour of the page.

    The point nearest to the pointer is described; a click on the legend selects a row.
    """
    return {
        "width": "container",
        "height": HEIGHT,
        "data": {"values": [vars(line) for line in curves.lines]},
        # one record per line is half as long as one per point
        "transform": [{"flatten": list(COLUMNS)}],
        "layer": [*_bands(curves), *_lines(curves), *_baselines(curves), *_published(curves)],
        "config": CONFIG,
    }


def static_chart(spec: Spec, **properties: Any) -> Spec:
    """A chart without the invisible points that react to the pointer."""
    layers = [layer for layer in spec["layer"] if "tooltip" not in layer["encoding"]]
    return spec | {"layer": layers, **properties}


def _x(curves: Curves) -> Spec:
    # the page changes the fields and the types
    return {
        "field": curves.time,
        "type": "quantitative",
        "title": TIMES[curves.time],
        "scale": {"type": "linear", "nice": False},
        "axis": {"grid": False},
    }


def _y(curves: Curves, name: str = "value") -> Spec:
    # a logarithmic axis that is "nice" runs to the next power of ten
    scale: Spec = {"type": "log", "nice": False} if curves.logarithmic else {"type": "linear"}
    if curves.domain is not None:
        scale["domain"] = list(curves.domain)
    return {"field": name, "type": "quantitative", "title": curves.label, "scale": scale}


def _color(curves: Curves) -> Spec:
    colors = [COLORS[place % len(COLORS)] for place in curves.places]
    scale = {"domain": curves.rows, "range": colors}
    return {"field": "row", "type": "nominal", "scale": scale, "legend": _legend(curves.rows)}


def _dash(curves: Curves) -> Spec:
    """Dashes for all quantities but the last one; for one quantity, where colours repeat."""
    if len(curves.parts) > 1:
        parts = curves.parts[::-1]
        scale = {"domain": parts, "range": list(DASHES[: len(parts)])}
        legend = _legend(parts) | {"symbolStrokeColor": "currentColor"}
        return {"field": "part", "type": "nominal", "scale": scale, "legend": legend}
    dashes = [DASHES[place // len(COLORS) % len(DASHES)] for place in curves.places]
    scale = {"domain": curves.rows, "range": dashes}
    return {"field": "row", "type": "nominal", "scale": scale, "legend": _legend(curves.rows)}


def _legend(rows: Sequence[str]) -> Spec:
    longest = max(map(len, rows))
    return {
        "title": None,
        "orient": "bottom",
        "columns": next((columns for length, columns in LEGEND if longest < length), 1),
        # truncated labels could be equal, so long ones are broken at commas instead
        "labelExpr": r"split(replace(datum.label, /(.{40,}?,) /g, '$1\n'), '\n')",
        "labelLimit": 0,
        "symbolOpacity": 1,
        "symbolType": "stroke",
        "symbolStrokeWidth": 2.5,
    }


def _picked(shown: float, hidden: float) -> Spec:
    return {"condition": {"param": "picked", "value": shown}, "value": hidden}


def _bands(curves: Curves) -> list[Spec]:
    if all(line.low == line.high for line in curves.lines):
        return []
    encoding = {
        "x": _x(curves),
        "y": _y(curves, "low"),
        "y2": {"field": "high"},
        "color": _color(curves),
        "detail": {"field": "part", "type": "nominal"},
        "opacity": _picked(0.16, 0.03),
    }
    return [{"mark": {"type": "area", "clip": True}, "encoding": encoding}]


def _lines(curves: Curves) -> list[Spec]:
    base = {"x": _x(curves), "y": _y(curves), "color": _color(curves)}
    picked = {"name": "picked", "select": {"type": "point", "fields": ["row"]}, "bind": "legend"}
    near = {
        "name": "near",
        "select": {
            "type": "point",
            "fields": ["row", "part", "step"],
            "nearest": True,
            "on": "pointerover",
        },
    }
    tooltip = [
        {"field": "row", "type": "nominal", "title": "curve"},
        {"field": "seeds", "type": "nominal"},
        {"field": "step", "type": "quantitative"},
        {"field": "epoch", "type": "quantitative", "format": ".4~g"},
        {"field": "value", "type": "quantitative", "title": curves.label, "format": ".4~g"},
        {"field": "low", "type": "quantitative", "format": ".4~g"},
        {"field": "high", "type": "quantitative", "format": ".4~g"},
    ]
    if len(curves.parts) > 1:
        tooltip.insert(1, {"field": "part", "type": "nominal", "title": "split"})
    near_opacity = {"condition": {"param": "near", "empty": False, "value": 1}, "value": 0}
    return [
        {
            "params": [picked],
            "mark": {"type": "line", "strokeWidth": 1.8, "strokeJoin": "round", "clip": True},
            "encoding": {
                **base,
                "strokeDash": _dash(curves),
                "detail": {"field": "part", "type": "nominal"},
                "opacity": _picked(0.95, 0.12),
            },
        },
        {
            "params": [near],
            "mark": {"type": "point", "filled": True, "size": 45, "clip": True},
            "encoding": {**base, "opacity": near_opacity, "tooltip": tooltip},
        },
    ]


def _baselines(curves: Curves) -> list[Spec]:
    if not curves.baselines:
        return []
    data = {"values": [{"value": value} for value in curves.baselines]}
    rule = {"type": "rule", "strokeDash": [4, 4], "color": "currentColor", "opacity": 0.6}
    words = {"type": "text", "text": "baseline", "align": "right", "dy": -6, "opacity": 0.75}
    y = _y(curves)
    return [
        {"data": data, "mark": rule | {"clip": True}, "encoding": {"y": y}},
        {
            "data": data,
            "mark": words | {"color": "currentColor", "clip": True},
            "encoding": {"y": y, "x": {"value": "width"}},
        },
    ]


def _published(curves: Curves) -> list[Spec]:
    if not curves.published:
        return []
    encoding = {"x": _x(curves), "y": _y(curves), "color": _color(curves)}
    mark = {"type": "point", "shape": "triangle-left", "filled": True, "size": 70, "opacity": 1}
    data = {"values": list(curves.published)}
    return [{"data": data, "mark": mark | {"xOffset": 7}, "encoding": encoding}]
