"""Verdicts for a page: each with the curves and pictures that it is based on."""

from collections.abc import Mapping, Sequence

from cayley.lab.recipes import published
from cayley.lab.report.claims import JudgedClaim, Picture
from cayley.lab.report.figures import Figure, draw_tasks
from cayley.lab.report.quantities import Quantity
from cayley.lab.report.rows import Report, Row
from cayley.lab.verdicts.evidence import Evidence
from cayley.lab.verdicts.findings import Outcome
from cayley.lab.verdicts.judging import Judge, Verdict, judges
from cayley.lab.verdicts.statement import Statement
from cayley.lab.verdicts.statistics import SEEDS
from cayley.lab.verdicts.studied import StudyNumber

__all__ = ["missing_commands", "show_verdicts"]

Statements = Sequence[Statement | StudyNumber]


def missing_commands(verdict: Verdict) -> tuple[str, ...]:
    """The commands for what a verdict lacks, runs or more seeds."""
    found = verdict.finding
    lacking = [*((name, SEEDS) for name in found.missing), *found.unsettled]
    return tuple(
        f"cayley {name if name.startswith('study ') else f'train {name}'} --seeds {seeds}"
        for name, seeds in lacking
    )


def show_verdicts(
    verdicts: Sequence[Verdict],
    evidence: Evidence,
    report: Report,
    pictures: Mapping[str, bytes],
) -> list[JudgedClaim]:
    """Verdicts with what they are based on, the decided ones first.

    Arguments:
        verdicts: On claims.
        evidence: The evidence that they are based on.
        report: The same runs, in rows.
        pictures: Those of studies, by name.
    """
    rows = {
        row.recipe.name: row
        for row in report.rows
        if row.recipe.variant == "paper" and not row.changes and row.finished
    }
    shown = [_show(one, evidence, rows, pictures) for one in verdicts]
    return sorted(shown, key=lambda one: one.rank)


def _show(
    verdict: Verdict,
    evidence: Evidence,
    rows: Mapping[str, Row],
    pictures: Mapping[str, bytes],
) -> JudgedClaim:
    claim, finding = verdict.claim, verdict.finding
    statements = judges().get(claim.same_as or claim.id, Judge(())).choose(evidence)
    studies = [
        name
        for name in dict.fromkeys(one.study for one in statements if isinstance(one, StudyNumber))
        if name in evidence.studies
    ]
    figures = _draw(claim.id, statements, rows)
    return JudgedClaim(
        id=claim.id,
        text=claim.text,
        source=f"{published.papers()[claim.paper].short}, {claim.location}",
        paper=claim.paper,
        outcome=finding.outcome.value,
        words=verdict.words,
        reasons=finding.words,
        commands=missing_commands(verdict),
        basis=(
            "runs"
            if figures or studies or _has_runs(statements, evidence)
            else "tests"
            if finding.outcome == Outcome.HOLDS
            else "nothing"
        ),
        figures=figures,
        pictures=tuple(
            Picture(name, evidence.studies[name].title, pictures[name])
            for name in studies
            if name in pictures
        ),
    )


def _has_runs(statements: Statements, evidence: Evidence) -> bool:
    names = {name for one in statements for name in one.recipes}
    return any(evidence.trials(name) or evidence.diverged(name) for name in names)


def _draw(name: str, statements: Statements, rows: Mapping[str, Row]) -> tuple[Figure, ...]:
    """Charts of the quantities that the statements are about, one per task."""
    groups: dict[Quantity, dict[str, Row]] = {}
    for one in statements:
        if isinstance(one, Statement):
            found = {recipe: rows[recipe] for recipe in one.recipes if recipe in rows}
            groups.setdefault(one.quantity, {}).update(found)
    return tuple(
        figure
        for quantity, some in groups.items()
        for figure in draw_tasks(f"claim-{name}", some.values(), quantity)
    )
