"""A report as a page, one file that needs no network, and its tables as Markdown."""

from importlib.resources import files
from pathlib import PurePosixPath

from cayley.lab import wording
from cayley.lab.report.charts import TIMES
from cayley.lab.report.figures import Figure, draw_figures
from cayley.lab.report.rows import Line, Report, Row, Section
from cayley.lab.report.scripts import load_scripts
from cayley.lab.wording import counted, escape_markdown, number, printed, signed, spread

__all__ = ["draw_all", "write_markdown", "write_page"]

HEADS = (
    "recipe",
    "quantity",
    "ours",
    "published",
    "gap",
    "baseline",
    "seeds",
    "parameters",
    "time",
    "machine",
)
PREFACE = """\
Ours is the mean over seeds ± the sample standard deviation. The gap is ours − published; it is
*within spread* if it is not larger than that deviation, ours or theirs, and from one seed it tells
neither better nor worse.
† The test set chose its own best evaluation, as in the paper: optimistic.\
"""


def draw_all(report: Report) -> dict[str, list[Figure]]:
    """The charts of a report, by section."""
    return draw_figures(report.sections)


def write_page(report: Report, figures: dict[str, list[Figure]], date: str) -> str:
    """The page as HTML.

    Arguments:
        report: What to show.
        figures: By section.
        date: When the report was made.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(
        files("cayley.lab.report").joinpath("page.html").read_text(encoding="utf-8")
    )
    return template.render(
        report=report,
        figures=figures,
        date=date,
        wording=wording,
        times=TIMES,
        anchors={section.name for section in report.sections},
        bundle=load_scripts() if any(figures.values()) else "",
    )


def write_markdown(
    report: Report, figures: dict[str, list[Figure]], folder: PurePosixPath | None = None
) -> str:
    """A report as Markdown.

    Arguments:
        report: What to show.
        figures: By section.
        folder: Where the figures are, seen from the file; None to leave them out.
    """
    blocks = ["# Results beside the published ones", report.sentence, PREFACE]
    for section in report.sections:
        blocks.append(f"## {escape_markdown(section.title)}")
        lines = [(row, line) for row in section.rows for line in row.lines]
        cells = [HEADS, ("---", "---", *["---:"] * 7, "---"), *(_cells(*one) for one in lines)]
        if section.view is not None:
            blocks.append(_describe(section))
        if lines:
            blocks.append("\n".join(f"| {' | '.join(row)} |" for row in cells))
        if folder is not None:
            for figure in figures[section.name]:
                blocks.append(f"![{escape_markdown(figure.title)}]({folder / figure.name}.png)")
                blocks.append(escape_markdown(figure.caption))
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
    """Where a section is from, and what of it was run."""
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


def _cells(row: Row, line: Line) -> tuple[str, ...]:
    published = gap = "–"
    if line.published is not None:
        value = printed(line.published.value, line.published.std)
        published = f"{value} ({line.published.source})"
    if line.gap is not None and line.mean is not None:
        gap = f"{signed(line.gap, line.mean)} {line.verdict}"
    return tuple(
        map(
            escape_markdown,
            (
                row.label,
                line.quantity.label + (" †" if line.optimistic else ""),
                "–" if line.mean is None else spread(line.mean, line.spread),
                published,
                gap,
                "–" if line.baseline is None else number(line.baseline),
                row.seeds + (f", and {row.unfinished} unfinished" if row.unfinished else ""),
                f"{row.parameters:,}" + (f" (printed {row.printed})" if row.printed else ""),
                " ".join(row.time or "–"),
                ", ".join(row.environments),
            ),
        )
    )
