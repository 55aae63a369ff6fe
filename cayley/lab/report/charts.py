"""Learning curves in Vega-Lite, from plain records."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import altair as alt

__all__ = ["COLORS", "DASHES", "Curves", "draw_curves", "static_chart"]

Records = Sequence[dict[str, Any]]

# of middle lightness: they stand out from white and from black
COLORS = ("#3b7dd8", "#d9742b", "#3a9d5d", "#b65cc0", "#b8901c", "#d1495b", "#2a9d98", "#85858f")
DASHES = ([1, 0], [6, 3], [2, 2], [8, 2, 2, 2])
FONT = "system-ui, sans-serif"
HEIGHT = 300


@dataclass(frozen=True)
class Curves:
    """What a chart shows.

    Attributes:
        label: Of the values.
        time: What they are drawn over: ``"step"`` or ``"epoch"``.
        points: Records with ``row``, ``run``, ``seed``, ``step``, ``epoch``, ``value`` and
            ``loss``; a line for each run of each row.
        baselines: Values of the naive predictor.
        published: Records with ``row``, ``step``, ``epoch`` and ``value``.
        logarithmic: Whether the axis of the values is, at first.
    """

    label: str
    time: str
    points: Records
    baselines: Sequence[float]
    published: Records
    logarithmic: bool


def draw_curves(curves: Curves) -> dict[str, Any]:
    """A chart as wide as its place, whose lines and words have the colour of the text around it.

    The point that is nearest to the pointer is described; a click on the legend picks a row.
    """
    import altair as alt

    layers = [*_lines(curves), *_baselines(curves), *_published(curves)]
    chart = (
        alt.layer(*layers, data=alt.Data(values=list(curves.points)))
        .properties(width="container", height=HEIGHT)
        .configure(background="transparent", font=FONT, padding=4)
        .configure_scale(zero=False)
        .configure_view(stroke=None, clip=False)
        .configure_axis(
            labelColor="currentColor",
            labelFontSize=11,
            titleColor="currentColor",
            titleFontSize=11,
            titleFontWeight="normal",
            gridColor="currentColor",
            gridOpacity=0.1,
            domain=False,
            tickColor="currentColor",
            tickOpacity=0.3,
            tickCount=6,
        )
        .configure_legend(labelColor="currentColor", labelFontSize=12)
    )
    spec = chart.to_dict()
    # an address that nothing here needs
    spec.pop("$schema")
    return spec


def static_chart(spec: dict[str, Any], **properties: Any) -> dict[str, Any]:
    """A chart without the invisible points that react to the pointer."""
    layers = [layer for layer in spec["layer"] if "tooltip" not in layer["encoding"]]
    params = [param for param in spec["params"] if param["name"] != "near"]
    return spec | {"layer": layers, "params": params, **properties}


def _axes(curves: Curves) -> tuple["alt.X", "alt.Y"]:
    import altair as alt

    # the page changes the types; a logarithmic axis that is "nice" runs to the next power of ten
    x = alt.X(
        f"{curves.time}:Q",
        title=curves.time,
        scale=alt.Scale(type="linear", nice=False),
        axis=alt.Axis(grid=False),
    )
    kind = "log" if curves.logarithmic else "linear"
    scale = alt.Scale(type=kind, nice=not curves.logarithmic)
    return x, alt.Y("value:Q", title=curves.label, scale=scale)


def _colors(curves: Curves) -> tuple["alt.Color", "alt.StrokeDash"]:
    """A colour for each row; dashes where colours come again."""
    import altair as alt

    rows = list(dict.fromkeys(point["row"] for point in curves.points))
    legend = alt.Legend(
        title=None,
        orient="bottom",
        columns=2 if max(map(len, rows)) < 20 else 1,
        # cut labels can be the same: long ones are broken at commas instead
        labelExpr=r"split(replace(datum.label, /(.{40,}?,) /g, '$1\n'), '\n')",
        labelLimit=0,
        symbolType="stroke",
        symbolStrokeWidth=2.5,
    )
    colors = [COLORS[index % len(COLORS)] for index in range(len(rows))]
    dashes = [DASHES[index // len(COLORS) % len(DASHES)] for index in range(len(rows))]
    return (
        alt.Color("row:N", scale=alt.Scale(domain=rows, range=colors), legend=legend),
        alt.StrokeDash("row:N", scale=alt.Scale(domain=rows, range=dashes), legend=legend),
    )


def _lines(curves: Curves) -> list["alt.Chart"]:
    import altair as alt

    x, y = _axes(curves)
    color, dash = _colors(curves)
    near = alt.selection_point(
        name="near", fields=["row", "run", curves.time], nearest=True, on="pointerover", empty=False
    )
    picked = alt.selection_point(name="picked", fields=["row"], bind="legend")
    base = alt.Chart().encode(x=x, y=y, color=color)
    lines = base.mark_line(strokeWidth=1.8, strokeJoin="round").encode(
        strokeDash=dash,
        detail="run:N",
        opacity=alt.when(picked).then(alt.value(0.9)).otherwise(alt.value(0.12)),
    )
    points = base.mark_point(filled=True, size=45).encode(
        opacity=alt.when(near).then(alt.value(1)).otherwise(alt.value(0)),
        tooltip=[
            alt.Tooltip("row:N", title="recipe"),
            alt.Tooltip("seed:N"),
            alt.Tooltip("step:Q"),
            alt.Tooltip("epoch:Q", format=".4~g"),
            alt.Tooltip("value:Q", title=curves.label, format=".4~g"),
            alt.Tooltip("loss:Q", title="training loss", format=".4~g"),
        ],
    )
    return [lines.add_params(picked), points.add_params(near)]


def _baselines(curves: Curves) -> list["alt.Chart"]:
    import altair as alt

    if not curves.baselines:
        return []
    values = [{"value": value} for value in curves.baselines]
    base = alt.Chart(alt.Data(values=values)).encode(y=_axes(curves)[1])
    words = base.mark_text(
        text="baseline", align="right", dy=-6, color="currentColor", opacity=0.75
    )
    return [
        base.mark_rule(strokeDash=[4, 4], color="currentColor", opacity=0.6),
        words.encode(x=alt.value("width")),
    ]


def _published(curves: Curves) -> list["alt.Chart"]:
    import altair as alt

    if not curves.published:
        return []
    x, y = _axes(curves)
    base = alt.Chart(alt.Data(values=list(curves.published))).encode(x=x, y=y)
    marks = base.mark_point(shape="triangle-left", filled=True, size=70, xOffset=7, opacity=1)
    return [marks.encode(color=_colors(curves)[0])]
