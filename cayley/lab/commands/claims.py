"""The lists of ``cayley list --claims`` and ``--missing``: what the documents state."""

import json
from argparse import Namespace
from itertools import groupby
from textwrap import fill
from typing import Any

from cayley.lab.recipes.coverage import Coverage, Missing, coverage, missing

__all__ = ["list_claims", "list_missing"]

WIDTH = 100


def list_claims(options: Namespace) -> int:
    """List the statements of the papers, and what covers each: recipes, tests, or neither."""
    for one in coverage():
        claim = one.claim
        if not _wanted(options, claim.paper, claim.location, claim.task, one.recipes):
            continue
        if options.json:
            print(json.dumps(_claim(one)))
            continue
        print(f"{claim.id} ({claim.paper}, {claim.location})")
        print(fill(claim.text, WIDTH, initial_indent="  ", subsequent_indent="  "))
        for label, names in (("recipes", one.recipes), ("tests", one.tests)):
            if names:
                _names(label, names)
        if one.reason and not one.tests:
            print(fill(one.reason, WIDTH, initial_indent="  none: ", subsequent_indent="    "))
    return 0


def list_missing(options: Namespace) -> int:
    """List the published numbers and statements that no recipe serves, and why."""
    found = [
        one for one in missing() if _wanted(options, one.paper, one.location, one.task, (one.id,))
    ]
    if options.json:
        for one in found:
            print(json.dumps(vars(one)))
        return 0
    for reason, group in groupby(found, lambda one: one.reason):
        members: list[Missing] = list(group)
        print(fill(reason, WIDTH, subsequent_indent="  "))
        for kind in ("result", "claim"):
            names = tuple(one.id for one in members if one.kind == kind)
            if names:
                _names(f"{kind}s", names)
        if members[0].tests:
            _names("tests", members[0].tests)
    return 0


def _wanted(
    options: Namespace, paper: str, location: str, task: str, names: tuple[str, ...]
) -> bool:
    """Whether --paper, --task and --model, of which names of recipes tell, let it through."""
    return (
        options.paper.lower() in f"{paper} {location}".lower()
        and options.task.lower() in task.lower()
        and options.model.lower() in " ".join(names).lower()
    )


def _names(label: str, names: tuple[str, ...]) -> None:
    # names are for copying: they are never cut
    text = fill(
        ", ".join(names),
        WIDTH,
        initial_indent=f"  {label}: ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    print(text)


def _claim(one: Coverage) -> dict[str, Any]:
    return {**vars(one.claim), "recipes": one.recipes, "tests": one.tests, "reason": one.reason}
