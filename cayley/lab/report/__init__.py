"""Reports: run folders beside the published numbers, as a page, as figures and as Markdown.

=============== ================================================================
``reading``     runs read from their folders, and what is wrong with them
``quantities``  what a published number is a number of
``rows``        the rows of tables; ``summary`` gathers runs into them
``sections``    rows as the figures and tables of the documents show them
``charts``      learning curves in Vega-Lite; ``figures`` draws those of runs
``pages``       the page and the Markdown file; ``scripts`` of the page's charts
=============== ================================================================
"""

from cayley.lab.report.pages import draw_all, write_markdown, write_page
from cayley.lab.report.reading import MeasuredRun, Problem, read_runs
from cayley.lab.report.rows import Report
from cayley.lab.report.summary import summarize

__all__ = [
    "MeasuredRun",
    "Problem",
    "Report",
    "draw_all",
    "read_runs",
    "summarize",
    "write_markdown",
    "write_page",
]
