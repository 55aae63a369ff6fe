"""The command ``cayley report``."""

import json
import os
from argparse import Namespace
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from cayley.lab.commands.files import write_file
from cayley.lab.errors import RunError

if TYPE_CHECKING:
    from cayley.lab.report import JudgedClaim, MeasuredRun, Report

__all__ = ["report"]


def report(options: Namespace) -> int:
    """Write a page that judges the claims of the papers, and shows runs beside their numbers.

    The page is one file: verdicts, tables, learning curves, machines. It needs no network, and its
    tables no scripts. Studies below the folders count, too. Runs that are not finished or damaged
    are named in it. A sweep has its own section: history, parallel coordinates, importances.
    """
    from cayley.lab.report import (
        draw_all,
        draw_sweep,
        leave_out,
        list_tables,
        read_runs,
        read_sweeps,
        summarize,
        write_markdown,
        write_page,
    )

    runs, problems = read_runs(options.folders)
    if not runs and not problems:
        places = ", ".join(map(str, options.folders))
        raise RunError(f"expected runs below {places}, got none: make some with cayley train")
    sweeps = {one.name: (one, draw_sweep(one)) for one in read_sweeps(options.folders, runs)}
    results = [one for one, _ in sweeps.values()]
    runs, problems = leave_out(results, runs, problems)
    summary = summarize(runs, problems)
    figures = draw_all(summary)
    claims = _judge(runs, summary, options.folders)
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    write_file(options.output, write_page(summary, figures, date, claims, sweeps).encode())
    if options.figures is not None:
        charts = [one for _, several in sweeps.values() for one in several]
        for figure in (*(one for several in figures.values() for one in several), *charts):
            write_file(options.figures / f"{figure.name}.png", figure.png())
    for table in list_tables(summary, claims, results):
        if options.csv is not None:
            write_file(options.csv / f"{table.name}.csv", table.csv().encode())
        if options.latex is not None:
            write_file(options.latex / f"{table.name}.tex", f"{table.latex()}\n".encode())
    if options.markdown is not None:
        place = None
        if options.figures is not None:
            start = options.markdown.resolve().parent
            place = PurePosixPath(
                Path(os.path.relpath(options.figures.resolve(), start)).as_posix()
            )
        write_file(options.markdown, write_markdown(summary, figures, place, sweeps).encode())
    if options.json:
        for record in _records(summary):
            print(json.dumps(record))
    else:
        print(f"{options.output}: {summary.sentence}")
        for one in results:
            print(f"{one.record.study}: {one.sentence}")
    return 0


def _judge(
    runs: Sequence["MeasuredRun"], summary: "Report", folders: Sequence[Path]
) -> list["JudgedClaim"]:
    """The verdicts on all claims, with the pictures of the studies that they are from."""
    from cayley.lab.runs import STUDY_PICTURE, find_studies, read_study
    from cayley.lab.verdicts import Evidence, judge_claims, show_verdicts

    studies = {folder: read_study(folder) for folder in find_studies(folders)}
    evidence = Evidence(runs, studies.values())
    pictures = {
        record.study: (folder / STUDY_PICTURE).read_bytes()
        for folder, record in studies.items()
        # of several folders of one study one counts
        if record is evidence.studies[record.study] and (folder / STUDY_PICTURE).exists()
    }
    return show_verdicts(judge_claims(evidence), evidence, summary, pictures)


def _records(summary: "Report") -> list[dict[str, Any]]:
    """A line of a table each, with the figures and tables that show it."""
    from cayley.lab.report import describe_line

    return [
        describe_line(row, line)
        | {"views": [view.name for view in summary.views if any(row is one for one in view.rows)]}
        for row in summary.rows
        for line in row.lines
    ]
