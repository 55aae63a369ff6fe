"""A verdict on every claim, from recorded runs and studies."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
        part: The part of the data that a study has; empty for none.
        instead: Statements about that study, for as long as there are no runs on all the data.
    """

    statements: tuple[Statement | StudyNumber, ...]
    data: str = ""
    part: str = ""
    instead: tuple[StudyNumber, ...] = ()

    def choose(self, evidence: Evidence) -> tuple[Statement | StudyNumber, ...]:
        """The statements that are judged."""
        names = {name for statement in self.statements for name in statement.recipes}
        whole = not self.instead or any(evidence.trials(name) for name in names)
        return self.statements if whole else self.instead

    def judge(self, evidence: Evidence) -> Finding:
        """What runs and studies say."""
        chosen = self.choose(evidence)
        names = {name for statement in chosen for name in statement.recipes}
        if self.data and not any(evidence.trials(name) for name in names):
            return Finding(Outcome.CANNOT, (self.data,))
        found = combine([statement.judge(evidence) for statement in chosen])
        return replace(found, part=self.part) if chosen is self.instead else found


@dataclass(frozen=True)
class Verdict:
    """A claim and what was found."""

    claim: published.Claim
    finding: Finding

    @property
    def words(self) -> str:
        """The outcome, with its tendency if it is undecided, and on which part of the data."""
        outcome, leaning = self.finding.outcome, self.finding.leaning
        words = outcome.value
        if outcome == Outcome.UNDECIDED and leaning != Outcome.UNDECIDED:
            words = f"undecided, leaning to {leaning.value}"
        return f"{words}, on {self.finding.part}" if self.finding.part else words


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
    if unknown := set(table) - {"says", "data", "part", "instead"}:
        raise RecipeError(
            f"judges.toml: {name}: expected says, data, part and instead, got {sorted(unknown)}"
        )
    if ("part" in table) != ("instead" in table):
        raise RecipeError(f"judges.toml: {name}: expected part and instead together, got one")
    says, instead = (
        tuple(_read_statement(name, one) for one in table.get(key, ()))
        for key in ("says", "instead")
    )
    return Judge(says, table.get("data", ""), table.get("part", ""), instead)


def _read_statement(name: str, table: Mapping[str, Any]) -> Any:
    rest = {key: value for key, value in table.items() if key != "form"}
    if table.get("form") not in FORMS:
        raise RecipeError(
            f"judges.toml: {name}: expected a form among {', '.join(FORMS)}, "
            f"got {table.get('form')!r}"
        )
    return from_table(FORMS[table["form"]], rest)


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
