"""The command ``cayley verdicts``."""

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cayley.lab.commands.files import write_file
from cayley.lab.wording import escape_markdown

if TYPE_CHECKING:
    from cayley.lab.verdicts import Verdict

__all__ = ["verdicts", "write_verdicts"]


def verdicts(options: Namespace) -> int:
    """Judge every claim of the papers by runs and studies.

    A claim holds, does not hold, is undecided (then the commands for what is missing are shown), or
    cannot be run. Only finished runs with a recipe's own settings count, and only from three seeds
    on. Problems with other runs are printed.
    """
    from cayley.lab.report import count_outcomes, read_runs
    from cayley.lab.runs import find_studies, read_study
    from cayley.lab.verdicts import Evidence, judge_claims, missing_commands

    runs, problems = read_runs(options.folders)
    for problem in problems:
        print(f"{problem.folder}: {problem.reason}", file=sys.stderr)
    evidence = Evidence(runs, map(read_study, find_studies(options.folders)))
    found = [
        one
        for one in judge_claims(evidence)
        if options.paper.lower() in one.claim.paper and one.words.startswith(options.outcome)
    ]
    if options.markdown is not None:
        write_file(options.markdown, write_verdicts(found, options.folders).encode())
    if options.json:
        for one in found:
            print(json.dumps(_record(one)))
        return 0
    for one in found:
        print(f"{one.claim.id}: {one.words}\n  {one.claim.text}")
        print(*(f"    {words}" for words in one.finding.words), sep="\n")
        for command in missing_commands(one):
            print(f"    missing: {command}")
    print(count_outcomes([one.finding.outcome.value for one in found]))
    return 0


def write_verdicts(found: Sequence["Verdict"], folders: Sequence[Path]) -> str:
    """A page in Markdown: a table of outcomes, then the reasons of each."""
    from cayley.lab.recipes import published
    from cayley.lab.report import count_outcomes
    from cayley.lab.verdicts import missing_commands

    counts = count_outcomes([one.finding.outcome.value for one in found])
    where = " ".join(folder.as_posix() for folder in folders)
    lines = [
        "# Verdicts",
        "",
        f"Written by `cayley verdicts {where}`; {counts}",
        "",
        "A claim holds if all statements of its judge (`cayley/lab/verdicts/judges.toml`) do: by "
        "Welch's test for numbers, Mann and Whitney's for times, at 5 %, from three seeds on. It "
        "does not hold if one of them is true of fewer than three in four pairs of seeds, at 5 % "
        "too. For an undecided claim the page asks for twice as many seeds; the tests are not "
        "corrected for being made again. Theorems are held by tests.",
        "",
    ]
    for paper in dict.fromkeys(one.claim.paper for one in found):
        lines += [
            f"## {published.papers()[paper].short}",
            "",
            "| claim | where | verdict |",
            "| --- | --- | --- |",
        ]
        own = [one for one in found if one.claim.paper == paper]
        lines += [
            f"| [{one.claim.id}](#{one.claim.id}) | {one.claim.location} | {one.words} |"
            for one in own
        ]
        lines.append("")
        for one in own:
            lines += [
                f"### {one.claim.id}",
                "",
                f"{escape_markdown(one.claim.text)} **{one.words}**",
                "",
            ]
            lines += [f"- {escape_markdown(words)}" for words in one.finding.words]
            lines += [f"- missing: `{command}`" for command in missing_commands(one)]
            lines.append("")
    return "\n".join(lines)


def _record(verdict: "Verdict") -> dict[str, object]:
    claim, finding = verdict.claim, verdict.finding
    return {
        "claim": claim.id,
        "paper": claim.paper,
        "location": claim.location,
        "text": claim.text,
        "outcome": finding.outcome.value,
        "leaning": finding.leaning.value,
        "part": finding.part,
        "words": list(finding.words),
        "missing": list(finding.missing),
        "unsettled": dict(finding.unsettled),
    }
