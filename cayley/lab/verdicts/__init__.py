"""Verdicts: what our own runs say about every claim of the documents.

=============== ================================================================
``statistics``  how sure one can be from a few seeds
``evidence``    the runs, as judges see them
``findings``    outcomes with their reasons, and how they add up
``statements``  the forms of statements; ``judges.toml`` has one judge a claim
``judging``     verdicts on all claims
=============== ================================================================
"""

from cayley.lab.verdicts.evidence import Evidence
from cayley.lab.verdicts.findings import Finding, Outcome
from cayley.lab.verdicts.judging import Judge, Verdict, judge_claims, judges

__all__ = ["Evidence", "Finding", "Judge", "Outcome", "Verdict", "judge_claims", "judges"]
