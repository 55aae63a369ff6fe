"""Verdicts: what our own runs and studies say about every claim of the papers.

=============== ================================================================
``statistics``  how sure one can be from a few seeds
``evidence``    runs and studies, as judges see them
``findings``    outcomes with their reasons, and how they are combined
``statement``   the base class of statements about runs
``single``      those about one recipe; ``pairs``, those that compare recipes
``studied``     the form of statements about studies
``judging``     the judges of ``judges.toml``, and verdicts on all claims
``showing``     verdicts with the curves and pictures behind them, for the page
=============== ================================================================
"""

from cayley.lab.verdicts.evidence import Evidence
from cayley.lab.verdicts.findings import Finding, Outcome
from cayley.lab.verdicts.judging import Judge, Verdict, judge_claims, judges
from cayley.lab.verdicts.showing import missing_commands, show_verdicts

__all__ = [
    "Evidence",
    "Finding",
    "Judge",
    "Outcome",
    "Verdict",
    "judge_claims",
    "judges",
    "missing_commands",
    "show_verdicts",
]
