"""The lists of ``cayley list --claims`` and ``--missing``: what the papers state."""

import json
import sys
from argparse import Namespace
from itertools import groupby
from textwrap import fill
from typing import Any

from cayley.lab.recipes import plain
from cayley.lab.recipes.coverage import Coverage, Missing, coverage, missing
from cayley.lab.recipes.published import Claim

__all__ = ["list_claims", "list_missing"]

WIDTH = 100


def list_claims(options: Namespace) -> int:
    """List the statements of the papers, and what covers each: recipes, studies, tests, or none."""
    found = [
        one
        for one in coverage()
        if _wanted(options, one.claim, (one.claim.id, one.claim.text), one.recipes)
    ]
    if not found:
        return _nothing("statement")
    for one in found:
        claim = one.claim
        if options.json:
            print(json.dumps(_claim(one)))
            continue
        print(f"{claim.id} ({claim.paper}, {claim.location})")
        print(fill(claim.text, WIDTH, initial_indent="  ", subsequent_indent="  "))
        for label in ("recipes", "studies", "tests"):
            if names := getattr(one, label):
                _names(label, names)
        if one.reason and not one.tests:
            print(fill(one.reason, WIDTH, initial_indent="  none: ", subsequent_indent="    "))
    return 0


def list_missing(options: Namespace) -> int:
    """List the published numbers and statements without a recipe, and why."""
    found = [one for one in missing() if _wanted(options, one, (one.id, one.reason), (one.id,))]
    if not found:
        return _nothing("number or statement without a recipe")
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
    options: Namespace, one: Claim | Missing, texts: tuple[str, ...], networks: tuple[str, ...]
) -> bool:
    """Whether something matches the words, --paper, --task and --model.

    Arguments:
        options: The options of the command.
        one: What is listed.
        texts: Texts to search for the words, besides the place and the task.
        networks: Names that contain that of the network, those of recipes if there are any.
    """
    place = f"{one.paper} {one.location}"
    known = [plain(text) for text in (place, one.task, *texts, *networks)]
    return (
        all(any(plain(word) in text for text in known) for word in options.words)
        and options.paper.lower() in place.lower()
        and options.task.lower() in one.task.lower()
        and options.model.lower() in " ".join(networks).lower()
    )


def _nothing(kind: str) -> int:
    print(f"cayley: no {kind} is about that: use fewer words or filters", file=sys.stderr)
    return 0


def _names(label: str, names: tuple[str, ...]) -> None:
    # names are for copying, so they are never cut
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
    return {**vars(one.claim), **{key: value for key, value in vars(one).items() if key != "claim"}}
