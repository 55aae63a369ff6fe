"""A report as a page, one file that needs no network, and its tables as Markdown."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from cayley.lab import wording
from cayley.lab.report.charts import COLORS, DASHES, LEGEND, TIMES, Curves, Trace, draw_curves
from cayley.lab.report.claims import JudgedClaim, count_outcomes, verdict_table
from cayley.lab.report.curves import gather_curves
from cayley.lab.report.figures import Figure, draw_figures
from cayley.lab.report.rows import Report, Section
from cayley.lab.report.scripts import load_scripts
from cayley.lab.report.sweep_charts import Chart
from cayley.lab.report.sweeps import SweepResult, sweep_table
from cayley.lab.report.tables import Table, coverage_table, result_table
from cayley.lab.wording import counted, escape_markdown

__all__ = ["draw_all", "list_tables", "write_markdown", "write_page"]

PREFACE = """\
Ours is the mean over seeds ± the sample standard deviation. The gap is ours − published. Ours is
*equal* if it has the digits that are printed; the gap is *within spread* if it is not larger than
that deviation, ours or theirs, and from one seed it tells neither better nor worse.
Times are those of runs alone: runs of `--together` share theirs.
† The test set chose its own best evaluation, as in the paper: optimistic.\
"""


def draw_all(report: Report) -> dict[str, list[Figure]]:
    """The charts of a report, by section."""
    return draw_figures(report.sections)


def list_tables(
    report: Report, claims: Sequence[JudgedClaim] = (), sweeps: Sequence[SweepResult] = ()
) -> list[Table]:
    """Every table of the page, for files of their own."""
    tables = [verdict_table(claims)] if claims else []
    tables.append(coverage_table(report))
    tables += map(sweep_table, sweeps)
    return tables + [result_table(one) for one in report.sections if one.rows]


def write_page(
    report: Report,
    figures: dict[str, list[Figure]],
    date: str,
    claims: Sequence[JudgedClaim] = (),
    sweeps: Mapping[str, tuple[SweepResult, Sequence[Chart]]] | None = None,
) -> str:
    """The page as HTML.

    Arguments:
        report: What to show.
        figures: By section.
        date: When the report was made.
        claims: Verdicts, the first section; none to leave it out.
        sweeps: With their charts, by name; None for none.
    """
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_load),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"address": _address, "blank": _blank}
    sweeps = {} if sweeps is None else sweeps
    charts = any(figures.values()) or any(one.figures for one in claims) or bool(sweeps)
    return environment.get_template("page.html").render(
        report=report,
        figures=figures,
        date=date,
        wording=wording,
        times=TIMES,
        anchors={section.name for section in report.sections},
        bundle=load_scripts() if charts else "",
        claims=claims,
        sweeps=[(one, drawn, sweep_table(one)) for one, drawn in sweeps.values()],
        verdict_list=verdict_table(claims),
        verdict_sentence=count_outcomes([one.outcome for one in claims]),
        coverage=coverage_table(report),
        tables={section.name: result_table(section) for section in report.sections},
        curves=gather_curves(report.rows) if charts else [],
        template=_template(),
        colors=COLORS,
        dashes=DASHES,
        legend=LEGEND,
    )


def _load(name: str) -> str:
    return files("cayley.lab.report").joinpath(name).read_text(encoding="utf-8")


def _address(text: str, kind: str) -> str:
    """Text as a ``data:`` address."""
    return f"data:{kind};charset=utf-8,{quote(text, safe='')}"


def _blank(value: Any) -> Any:
    return "" if value is None else value


def _template() -> dict[str, Any]:
    """A chart for the page to fill in."""
    times = {"step": (0,), "epoch": (0.0,), "time": (0.0,)}
    line = Trace("", "", "", value=(0.5,), low=(0.0,), high=(1.0,), **times)
    return draw_curves(Curves("", "step", [line], baselines=[0.0]))


def _picture(title: str, path: PurePosixPath) -> str:
    """A picture in Markdown."""
    return f"![{escape_markdown(title)}]({quote(str(path))})"


def write_markdown(
    report: Report,
    figures: dict[str, list[Figure]],
    folder: PurePosixPath | None = None,
    sweeps: Mapping[str, tuple[SweepResult, Sequence[Chart]]] | None = None,
) -> str:
    """A report as Markdown.

    Arguments:
        report: What to show.
        figures: By section.
        folder: Where the figures are, seen from the file; None to leave them out.
        sweeps: With their charts, by name; None for none.
    """
    blocks = ["# Results beside the published ones", report.sentence, PREFACE]
    for section in report.sections:
        blocks.append(f"## {escape_markdown(section.title)}")
        if section.view is not None:
            blocks.append(_describe(section))
        if section.rows:
            blocks.append(result_table(section).markdown())
        if folder is not None:
            for figure in figures[section.name]:
                blocks.append(_picture(figure.title, folder / f"{figure.name}.png"))
                blocks.append(escape_markdown(figure.caption))
    for sweep, charts in (sweeps or {}).values():
        blocks += [f"## {escape_markdown(sweep.title)}", escape_markdown(sweep.sentence)]
        blocks.append(sweep_table(sweep).markdown())
        if folder is not None:
            for chart in charts:
                blocks.append(_picture(chart.title, folder / f"{chart.name}.png"))
                blocks.append(escape_markdown(chart.caption))
    if report.problems:
        blocks.append("## Runs that are not, or not fully, in these numbers")
        problems = (
            (escape_markdown(str(one.folder)), escape_markdown(one.reason))
            for one in report.problems
        )
        blocks.append("\n".join(f"- {place}: {reason}" for place, reason in problems))
    blocks.append("## Machines")
    for environment in report.environments:
        facts = "; ".join(f"{name} {value}" for name, value in environment.facts)
        runs = counted(environment.run_count, "run")
        blocks.append(f"**{environment.letter}** ({runs}): {escape_markdown(facts)}")
    return "\n\n".join(blocks) + "\n"


def _describe(section: Section) -> str:
    """The source of a section, and how much of it was run."""
    assert section.view is not None
    words = f"{section.view.source}: {section.coverage}, by `cayley reproduce {section.name}`."
    if section.view.note:
        words += f" {escape_markdown(section.view.note)}"
    if section.elsewhere:
        which = "its other rows" if section.rows else "its rows"
        words += f" Numbers of {which}: {'; '.join(view.source for view in section.elsewhere)}."
    if section.missing:
        words += f" Not run: {', '.join(f'`{one.words}`' for one in section.missing)}."
    for name, reason in section.view.not_runnable.items():
        words += f" {escape_markdown(name)} cannot be: {escape_markdown(reason)}"
    return words
