"""Statements about studies, with numbers for which they hold, do not hold, and are undecided."""

from math import inf

import pytest
from lab.verdicts.made_up import make_run, make_study

from cayley.lab.verdicts import (
    Evidence,
    Finding,
    Judge,
    Outcome,
    Verdict,
    judge_claims,
    judges,
)
from cayley.lab.verdicts.studied import StudyNumber

STATEMENT = StudyNumber(study="heatmaps", number="share", above=0.1, below=0.5)
OF_STUDIES = {
    name: judge
    for name, judge in judges().items()
    if judge.instead
    or (judge.statements and all(isinstance(one, StudyNumber) for one in judge.statements))
}


def judge_shares(shares: list[float], *, random: bool = True, **changed: int) -> Finding:
    records = [
        make_study("heatmaps", [{"share": share} for share in shares], random=random, **changed)
    ]
    return STATEMENT.judge(Evidence([], records))


@pytest.mark.parametrize(
    ("shares", "outcome", "leaning"),
    [
        ([0.2, 0.3, 0.4], Outcome.HOLDS, Outcome.HOLDS),
        ([0.6, 0.7, 0.0], Outcome.FAILS, Outcome.FAILS),
        ([0.2, 0.3, 0.6], Outcome.UNDECIDED, Outcome.HOLDS),
        ([0.2, 0.3], Outcome.UNDECIDED, Outcome.HOLDS),
        ([0.6], Outcome.UNDECIDED, Outcome.FAILS),
    ],
)
def test_outcomes(shares: list[float], outcome: Outcome, leaning: Outcome) -> None:
    found = judge_shares(shares)
    assert (found.outcome, found.leaning) == (outcome, leaning)
    assert found.missing == (("study heatmaps",) if len(shares) < 3 else ())


def test_one_seed_decides_where_nothing_is_random() -> None:
    assert judge_shares([0.2], random=False).outcome == Outcome.HOLDS
    assert judge_shares([0.6], random=False).outcome == Outcome.FAILS


def test_other_settings_only_lean() -> None:
    found = judge_shares([0.2, 0.3, 0.4], steps=7)
    assert (found.outcome, found.leaning) == (Outcome.UNDECIDED, Outcome.HOLDS)
    assert found.words[-1] == "with other settings: steps = 7"


def test_own_settings_count_before_others_and_more_seeds_before_fewer() -> None:
    own = make_study("heatmaps", [{"share": 0.2}] * 3)
    fewer = make_study("heatmaps", [{"share": 0.6}])
    other = make_study("heatmaps", [{"share": 0.6}] * 5, steps=7)
    for records in ([own, fewer, other], [other, fewer, own]):
        assert Evidence([], records).studies == {"heatmaps": own}


def test_a_study_that_is_not_there_is_missing() -> None:
    found = STATEMENT.judge(Evidence([]))
    assert (found.outcome, found.leaning) == (Outcome.UNDECIDED, Outcome.UNDECIDED)
    assert found.missing == ("study heatmaps",)


@pytest.mark.parametrize("judge", OF_STUDIES.values(), ids=OF_STUDIES)
def test_judges_give_each_outcome(judge: Judge) -> None:
    study, good = "", dict[str, float]()
    statements = judge.choose(Evidence([]))
    for one in statements:
        assert isinstance(one, StudyNumber)
        study = one.study
        low = one.above if one.above > -inf else one.below - 2
        high = one.below if one.below < inf else one.above + 2
        good[one.number] = (low + high) / 2
    first = statements[0]
    assert isinstance(first, StudyNumber)
    bad = good | {first.number: first.below + 1 if first.below < inf else first.above - 1}
    cases = {
        Outcome.HOLDS: [good] * 3,
        Outcome.FAILS: [bad] * 3,
        Outcome.UNDECIDED: [good, good, bad],
    }
    for outcome, numbers in cases.items():
        found = judge.judge(Evidence([], [make_study(study, numbers)]))
        assert (found.outcome, found.part) == (outcome, judge.part)


def test_a_verdict_on_a_part_says_so_and_ends_with_runs_on_all() -> None:
    study = make_study("cifar10-slice", [{"bnp_60_loss_share": 0.1}] * 3)

    def find(evidence: Evidence) -> Verdict:
        verdicts = judge_claims(evidence)
        return next(one for one in verdicts if one.claim.id == "bnp-cifar-train-loss")

    found = find(Evidence([], [study]))
    assert found.words == "holds, on 1,000 of the 50,000 images of CIFAR-10"
    part = make_study("cifar10-slice", [{"bnp_60_loss_share": 0.1}] * 3, epochs=2)
    leaning = find(Evidence([], [part]))
    assert leaning.words == f"undecided, leaning to {found.words}"
    run = make_run("mlp/cifar10-60", 1, [1.0], metric="cross_entropy", split="train")
    found = find(Evidence([run], [study]))
    assert found.words == "undecided"
    assert found.finding.missing == ("mlp/cifar10-60-bnp", "mlp/cifar10-60-bn")
