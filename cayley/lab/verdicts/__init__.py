"""Verdicts: what our own runs and studies say about every claim of the documents.

=============== ================================================================
``statistics``  how sure one can be from a few seeds
``evidence``    runs and studies, as judges see them
``findings``    outcomes with their reasons, and how they add up
``statements``  the forms of statements about runs; ``judges.toml`` has one judge a claim
``studied``     the form of statements about studies
``judging``     verdicts on all claims
=============== ================================================================
"""

from cayley.lab.verdicts.evidence import Evidence
from cayley.lab.verdicts.findings import Finding, Outcome
from cayley.lab.verdicts.judging import Judge, Verdict, judge_claims, judges

__all__ = ["Evidence", "Finding", "Judge", "Outcome", "Verdict", "judge_claims", "judges"]
