"""What covers each published statement: recipes, studies, tests, or a reason why none does."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from cayley.lab.recipes import published
from cayley.lab.recipes.catalogue import tables
from cayley.lab.recipes.published import Claim

__all__ = ["Coverage", "Missing", "coverage", "missing"]


@dataclass(frozen=True)
class Coverage:
    """A published statement, and what covers it.

    Attributes:
        claim: The statement.
        recipes: The names of the recipes whose runs show whether it holds.
        studies: The names of the studies of it.
        tests: Our tests of it, or of a part of it, by their pytest names.
        reason: Why there is neither a recipe nor a study; empty if there is one.
    """

    claim: Claim
    recipes: tuple[str, ...]
    studies: tuple[str, ...]
    tests: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Missing:
    """A published number or statement without a recipe.

    Attributes:
        id: Its name.
        kind: ``"result"`` or ``"claim"``.
        paper: The ``id`` of the paper.
        location: The place in the paper.
        task: What it is about.
        reason: Why there is no recipe.
        tests: Our tests that check it instead.
    """

    id: str
    kind: str
    paper: str
    location: str
    task: str
    reason: str
    tests: tuple[str, ...]


def coverage() -> list[Coverage]:
    """All statements, in the order of the documents, and what covers each.

    Example:
        >>> one = next(one for one in coverage() if one.claim.id == "mnist-rho-optimum")
        >>> "scornn/mnist-170-rho-0" in one.recipes
        True
    """
    recipes = _recipes()
    tests: dict[str, list[str]] = defaultdict(list)
    reasons: dict[str, str] = {}
    for gap in (*published.gaps(), *published.checks()):
        for id in gap.claims:
            tests[id] += gap.tests
    for gap in published.gaps():
        reasons |= dict.fromkeys(gap.claims, gap.reason)
    studies: dict[str, list[str]] = defaultdict(list)
    for name, claims in published.studies().items():
        for id in claims:
            studies[id].append(name)
    return [
        Coverage(one, recipes.get(id, ()), (*studies[id],), (*tests[id],), reasons.get(id, ""))
        for id, one in published.claims().items()
    ]


def missing() -> list[Missing]:
    """Everything without a recipe, and why, in the order of ``not-runnable.toml``.

    Example:
        >>> next(one.reason for one in missing() if one.id == "cptb-goru-512-test-bpc")
        'Quoted from another paper, of a network that is not in this library: GORU, nnRNN.'
    """
    found = []
    for gap in published.gaps():
        for kind, ids in (("result", gap.results), ("claim", gap.claims)):
            for id in ids:
                one = published.result(id) if kind == "result" else published.claim(id)
                place = (one.paper, one.location, one.task)
                found.append(Missing(id, kind, *place, gap.reason, gap.tests))
    return found


@cache
def _recipes() -> Mapping[str, tuple[str, ...]]:
    """The names of the recipes of each claim."""
    found: dict[str, tuple[str, ...]] = {}
    for table in tables().values():
        for entry in table.entries:
            for id in entry.recipe().claims:
                found[id] = (*found.get(id, ()), entry.name)
    return found
