"""A verdict on every claim, from recorded runs and studies."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cayley.lab.errors import RecipeError
from cayley.lab.recipes import from_table, published
from cayley.lab.verdicts.evidence import Evidence
from cayley.lab.verdicts.findings import Finding, Outcome, combine
from cayley.lab.verdicts.pairs import Better, Earlier, Equal, Leads, Ratio, Tuned
from cayley.lab.verdicts.single import Diverges, Drops, Ends, Reaches, Returns, Starts
from cayley.lab.verdicts.statement import Statement
from cayley.lab.verdicts.studied import StudyNumber

__all__ = ["FORMS", "Judge", "Verdict", "judge_claims", "judges"]

STUDY = "Study to come"
FORMS: dict[str, type[Any]] = {
    "starts": Starts,
    "reaches": Reaches,
    "returns": Returns,
    "drops": Drops,
    "diverges": Diverges,
    "ends": Ends,
    "better": Better,
    "equal": Equal,
    "ratio": Ratio,
    "tuned": Tuned,
    "earlier": Earlier,
    "leads": Leads,
    "study": StudyNumber,
}


@dataclass(frozen=True)
class Judge:
    """What has to be seen for a claim to hold, written down before its runs were made.

    Attributes:
        statements: The statements, all of which have to hold.
        data: The data it needs that are not freely available; empty for none.
    """

    statements: tuple[Statement | StudyNumber, ...]
    data: str = ""

    def judge(self, evidence: Evidence) -> Finding:
        """What runs and studies say."""
        names = {name for statement in self.statements for name in statement.recipes}
        if self.data and not any(evidence.trials(name) for name in names):
            return Finding(Outcome.CANNOT, (self.data,))
        return combine([statement.judge(evidence) for statement in self.statements])


@dataclass(frozen=True)
class Verdict:
    """A claim and what was found."""

    claim: published.Claim
    finding: Finding

    @property
    def words(self) -> str:
        """The outcome, with its tendency if it is undecided."""
        outcome, leaning = self.finding.outcome, self.finding.leaning
        if outcome == Outcome.UNDECIDED and leaning != Outcome.UNDECIDED:
            return f"undecided, leaning to {leaning.value}"
        return outcome.value


def judge_claims(evidence: Evidence) -> list[Verdict]:
    """A verdict on every claim, in the order of ``published.toml``."""
    found = {name: _judge(claim, evidence) for name, claim in published.claims().items()}
    return [
        Verdict(claim, found[claim.same_as or name]) for name, claim in published.claims().items()
    ]


@cache
def judges() -> dict[str, Judge]:
    """The judges, by claim."""
    text = Path(__file__).with_name("judges.toml").read_text(encoding="utf-8")
    return {name: _read(name, table) for name, table in tomllib.loads(text).items()}


def _read(name: str, table: Mapping[str, Any]) -> Judge:
    if unknown := set(table) - {"says", "data"}:
        raise RecipeError(f"judges.toml: {name}: expected says and data, got {sorted(unknown)}")
    statements = []
    for one in table.get("says", ()):
        rest = {key: value for key, value in one.items() if key != "form"}
        if one.get("form") not in FORMS:
            raise RecipeError(
                f"judges.toml: {name}: expected a form among {', '.join(FORMS)}, "
                f"got {one.get('form')!r}"
            )
        statements.append(from_table(FORMS[one["form"]], rest))
    return Judge(tuple(statements), table.get("data", ""))


def _judge(claim: published.Claim, evidence: Evidence) -> Finding:
    if claim.id in judges():
        return judges()[claim.id].judge(evidence)
    if claim.same_as is not None:
        return Finding(Outcome.UNDECIDED, (f"as {claim.same_as}",))
    gap = next((gap for gap in published.gaps() if claim.id in gap.claims), None)
    if gap is None:
        return Finding(Outcome.UNDECIDED, ("no judge",))
    if gap.tests:
        return Finding(Outcome.HOLDS, tuple(f"tested by {test}" for test in gap.tests))
    if gap.reason.startswith(STUDY):
        return Finding(Outcome.UNDECIDED, (gap.reason,))
    return Finding(Outcome.CANNOT, (gap.reason,))
