"""Statements about the numbers of studies."""

from dataclasses import dataclass, replace
from math import inf

from cayley.lab.verdicts.evidence import Evidence
from cayley.lab.verdicts.findings import Finding, Outcome, by_count

__all__ = ["StudyNumber"]


@dataclass(frozen=True, kw_only=True)
class StudyNumber:
    """A number of a study lies between two lines, in every seed.

    If nothing is random, one seed decides. A study with other settings than its own gives at most a
    tendency.

    Attributes:
        study: The name of the study.
        number: The name of the number.
        above: A lower bound.
        below: An upper bound.
    """

    study: str
    number: str
    above: float = -inf
    below: float = inf

    @property
    def recipes(self) -> tuple[str, ...]:
        """None: no run is needed."""
        return ()

    def judge(self, evidence: Evidence) -> Finding:
        """What a study says about it."""
        record, name = evidence.studies.get(self.study), f"study {self.study}"
        values = [] if record is None else record.values(self.number)
        if record is None or not values:
            return Finding(Outcome.UNDECIDED, (f"{name}: not there",), missing=(name,))
        flags = [self.above < value < self.below for value in values]
        found = by_count(name, self._phrase(values), flags)
        if not record.random:
            words = (f"{name} {self._phrase(values)}",)
            found = Finding(found.leaning, words, found.leaning)
        if record.changed:
            settings = ", ".join(f"{key} = {value}" for key, value in record.changed.items())
            words = (*found.words, f"with other settings: {settings}")
            return replace(found, outcome=Outcome.UNDECIDED, words=words, missing=(name,))
        return found

    def _phrase(self, values: list[float]) -> str:
        lines = [f"above {self.above:.4g}"] if self.above > -inf else []
        lines += [f"below {self.below:.4g}"] if self.below < inf else []
        shown = ", ".join(f"{value:.4g}" for value in values)
        return f"{self.number} {shown} {' and '.join(lines)}"
