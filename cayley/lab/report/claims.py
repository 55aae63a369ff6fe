"""The papers' claims as a page shows them; :mod:`cayley.lab.verdicts` judges them."""

import base64
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cayley.lab.report.figures import Figure
from cayley.lab.report.tables import Table
from cayley.lab.wording import counted

__all__ = ["JudgedClaim", "Picture", "count_outcomes", "verdict_table"]

PLURALS = {"holds": "hold", "does not hold": "do not hold"}


@dataclass(frozen=True)
class Picture:
    """The picture of a study.

    Attributes:
        study: Its name.
        title: What it shows.
        png: The file.
    """

    study: str
    title: str
    png: bytes

    @property
    def address(self) -> str:
        """The picture itself as a ``data:`` address."""
        return "data:image/png;base64," + base64.b64encode(self.png).decode()


@dataclass(frozen=True, kw_only=True)
class JudgedClaim:
    """A claim, the verdict on it, and what it is based on.

    Attributes:
        id: The name of the claim.
        text: The claim.
        source: The paper, and the place in it.
        paper: The ``id`` of the paper.
        outcome: ``"holds"``, ``"does not hold"``, ``"undecided"`` or ``"cannot be run"``.
        words: The outcome, with its tendency if it is undecided, and on which part of the data.
        reasons: The numbers.
        commands: The commands for missing runs or seeds.
        basis: What decided: available runs or studies, tests, or nothing.
        figures: Curves of the runs.
        pictures: Pictures of studies.
    """

    id: str
    text: str
    source: str
    paper: str
    outcome: str
    words: str
    reasons: tuple[str, ...]
    commands: tuple[str, ...]
    basis: Literal["runs", "tests", "nothing"]
    figures: tuple[Figure, ...] = ()
    pictures: tuple[Picture, ...] = ()

    @property
    def rank(self) -> int:
        """For sorting: decided ones first, those without a tendency last."""
        order = ("holds", "does not hold", "undecided, leaning", "undecided", "cannot")
        return next(place for place, start in enumerate(order) if self.words.startswith(start))


def count_outcomes(outcomes: Sequence[str]) -> str:
    """How many claims have which outcome, in words.

    Example:
        >>> count_outcomes(["holds", "undecided", "holds"])
        '3 claims: 2 hold, 1 undecided.'
        >>> count_outcomes(["holds"]), count_outcomes([])
        ('1 claim: 1 holds.', '0 claims.')
    """
    counts = Counter(outcomes)
    fates = ", ".join(
        f"{count} {outcome if count == 1 else PLURALS.get(outcome, outcome)}"
        for outcome, count in counts.most_common()
    )
    return counted(len(outcomes), "claim") + (f": {fates}." if fates else ".")


def verdict_table(claims: Sequence[JudgedClaim]) -> Table:
    """All claims as a table."""
    return Table(
        "verdicts",
        "Verdicts",
        ("claim", "where", "statement", "verdict", "numbers"),
        tuple((one.id, one.source, one.text, one.words, "; ".join(one.reasons)) for one in claims),
        tuple(
            {
                "claim": one.id,
                "source": one.source,
                "statement": one.text,
                "outcome": one.outcome,
                "verdict": one.words,
                "numbers": list(one.reasons),
                "missing": "; ".join(one.commands),
            }
            for one in claims
        ),
    )
