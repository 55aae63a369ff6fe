"""The page: one file that needs neither network nor, for its tables, scripts."""

from importlib.resources import files

from cayley.lab.report import wording
from cayley.lab.report.figures import VEGALITE, Figure, draw_figures
from cayley.lab.report.rows import Report

__all__ = ["draw_all", "write_page"]

# the modules of the page's charts; they are bundled into it with all that they need
SNIPPET = "window.vegaEmbed = vegaEmbed;"


def draw_all(report: Report) -> dict[str, list[Figure]]:
    """The figures of a report, by table."""
    return {section.name: draw_figures(section) for section in report.sections}


def write_page(report: Report, figures: dict[str, list[Figure]], date: str) -> str:
    """The page as HTML.

    Arguments:
        report: What to show.
        figures: By table.
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
        report=report, figures=figures, date=date, wording=wording, bundle=_bundle(figures)
    )


def _bundle(figures: dict[str, list[Figure]]) -> str:
    """The scripts of the charts; none if there are no charts."""
    import vl_convert

    return vl_convert.javascript_bundle(SNIPPET, VEGALITE) if any(figures.values()) else ""
