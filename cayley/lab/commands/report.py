"""The command ``cayley report``."""

import json
import os
from argparse import Namespace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from cayley.lab.commands.files import write_file
from cayley.lab.errors import RunError

if TYPE_CHECKING:
    from cayley.lab.report import Report

__all__ = ["report"]


def report(options: Namespace) -> int:
    """Write a page that shows runs beside the published numbers.

    The page is one file: tables, learning curves, machines. It needs no network, and its tables no
    scripts. Runs that are not finished or damaged are named in it.
    """
    from cayley.lab.report import draw_all, read_runs, summarize, write_markdown, write_page

    runs, problems = read_runs(options.folders)
    if not runs and not problems:
        places = ", ".join(map(str, options.folders))
        raise RunError(f"expected runs below {places}, got none: make some with cayley train")
    summary = summarize(runs, problems)
    figures = draw_all(summary)
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    write_file(options.output, write_page(summary, figures, date).encode())
    if options.figures is not None:
        for figure in (one for several in figures.values() for one in several):
            write_file(options.figures / f"{figure.name}.png", figure.png())
    if options.markdown is not None:
        place = None
        if options.figures is not None:
            start = options.markdown.resolve().parent
            place = PurePosixPath(
                Path(os.path.relpath(options.figures.resolve(), start)).as_posix()
            )
        write_file(options.markdown, write_markdown(summary, figures, place).encode())
    if options.json:
        for record in _records(summary):
            print(json.dumps(record))
    else:
        print(f"{options.output}: {summary.sentence}")
    return 0


def _records(summary: "Report") -> list[dict[str, Any]]:
    """A line of a table each."""
    return [
        {
            "table": row.recipe.table,
            "views": [view.name for view in summary.views if any(row is one for one in view.rows)],
            "recipe": row.recipe.name,
            "variant": row.recipe.variant,
            "changes": list(row.changes),
            "split": line.quantity.split,
            "metric": line.quantity.metric,
            "scale": line.quantity.scale,
            "values": list(line.values),
            "mean": line.mean,
            "spread": line.spread,
            "published": None if line.published is None else line.published.value,
            "gap": line.gap,
            "verdict": line.verdict,
            "baseline": line.baseline,
        }
        for row in summary.rows
        for line in row.lines
    ]
