"""Reports: run folders beside the published numbers, as a page, as figures and as Markdown.

=============== ================================================================
``reading``     reading runs from their folders, and what is wrong with them
``samples``     text and sound that runs have produced
``quantities``  what a published number is a number of
``rows``        the rows of tables; ``summary`` gathers runs into them
``sections``    rows in the order of the papers' figures and tables
``tables``      tables as Markdown, LaTeX and CSV
``curves``      runs over time, by seed
``charts``      learning curves in Vega-Lite; ``figures`` draws those of runs
``sweeps``      trials of sweeps; ``sweep_charts`` draws them
``claims``      claims of the documents with the verdicts on them
``pages``       the page and the Markdown file; ``scripts`` of the page's charts
=============== ================================================================
"""

from cayley.lab.report.claims import JudgedClaim, count_outcomes
from cayley.lab.report.pages import draw_all, list_tables, write_markdown, write_page
from cayley.lab.report.reading import MeasuredRun, Problem, read_runs
from cayley.lab.report.rows import Report
from cayley.lab.report.summary import summarize
from cayley.lab.report.sweep_charts import draw_sweep
from cayley.lab.report.sweeps import SweepResult, leave_out, read_sweeps
from cayley.lab.report.tables import describe_line

__all__ = [
    "JudgedClaim",
    "MeasuredRun",
    "Problem",
    "Report",
    "SweepResult",
    "count_outcomes",
    "describe_line",
    "draw_all",
    "draw_sweep",
    "leave_out",
    "list_tables",
    "read_runs",
    "read_sweeps",
    "summarize",
    "write_markdown",
    "write_page",
]
