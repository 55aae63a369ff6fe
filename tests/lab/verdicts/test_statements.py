"""Every form of statement, with runs for which it holds, does not hold, and is undecided."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from lab.verdicts.made_up import make_evidence, make_run

from cayley.lab.verdicts import Evidence, Outcome
from cayley.lab.verdicts.findings import by_count
from cayley.lab.verdicts.judging import FORMS
from cayley.lab.verdicts.pairs import Ratio, Tuned
from cayley.lab.verdicts.single import Diverges, Ends

ONE, OTHER = "scornn/adding-200", "lstm/adding-200"
LOW = [[0.9, 0.5, 0.10], [0.9, 0.5, 0.11], [0.9, 0.4, 0.09]]
HIGH = [[1.0, 0.9, 0.80], [1.0, 0.9, 0.82], [1.0, 0.8, 0.79]]
BACK = [[0.9, 0.4, 0.95], [0.9, 0.4, 0.95], [0.9, 0.4, 0.99]]
MIXED = [LOW[0], HIGH[0], HIGH[1]]
Curves = list[list[float]]


@dataclass(frozen=True)
class Case:
    form: str
    settings: dict[str, Any]
    holds: tuple[Curves, Curves]
    fails: tuple[Curves, Curves]
    undecided: tuple[Curves, Curves]


CASES = {
    "starts": Case("starts", {"within": 0.05}, (HIGH, []), (LOW, []), (MIXED, [])),
    "reaches": Case("reaches", {"line": 0.3}, (LOW, []), (HIGH, []), (MIXED, [])),
    "never": Case("reaches", {"line": 0.3, "ever": False}, (HIGH, []), (LOW, []), (MIXED, [])),
    "within": Case("reaches", {"line": 0.6, "until": 2}, (LOW, []), (HIGH, []), (MIXED, [])),
    "returns": Case(
        "returns",
        {"line": 0.5, "back": 0.9, "of": "baseline"},
        (BACK, []),
        (LOW, []),
        ([*BACK[:2], LOW[2]], []),
    ),
    "drops": Case(
        "drops", {"start": 0.9, "line": 0.2, "within": 2}, (LOW, []), (HIGH, []), (MIXED, [])
    ),
    "ends": Case("ends", {"line": 0.2}, (LOW, []), (HIGH, []), (MIXED, [])),
    "does not pass": Case(
        "ends", {"line": 0.2, "passes": False}, (HIGH, []), (LOW, []), (MIXED, [])
    ),
    "better": Case("better", {}, (LOW, HIGH), (HIGH, LOW), (MIXED, HIGH)),
    "not much worse": Case(
        "better",
        {"by": -0.9},
        (HIGH, LOW),
        ([[3.0], [3.1], [3.2]], LOW),
        (MIXED, [[0.0], [0.1], [-0.9]]),
    ),
    "equal": Case("equal", {"by": 0.05}, (LOW, LOW), (LOW, HIGH), (MIXED, LOW)),
    "earlier": Case("earlier", {"line": 0.6}, (LOW, HIGH), (HIGH, LOW), (LOW, LOW)),
    "leads": Case("leads", {"after": 2}, (LOW, HIGH), (HIGH, LOW), (MIXED, HIGH)),
}


def outcome(form: str, settings: dict[str, Any], evidence: Evidence) -> Outcome:
    paired = {"than": (OTHER,)} if "than" in FORMS[form].__dataclass_fields__ else {}
    statement = FORMS[form](runs=(ONE,), metric="test_mse", **paired, **settings)
    return statement.judge(evidence).outcome


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_outcomes(case: Case) -> None:
    for expected, (ours, theirs) in {
        Outcome.HOLDS: case.holds,
        Outcome.FAILS: case.fails,
        Outcome.UNDECIDED: case.undecided,
    }.items():
        evidence = make_evidence({ONE: ours, OTHER: theirs})
        assert outcome(case.form, case.settings, evidence) == expected


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("seeds", [0, 1, 2])
def test_too_few_seeds_decide_nothing_but_lean(case: Case, seeds: int) -> None:
    ours, theirs = case.holds
    evidence = make_evidence({ONE: ours[:seeds], OTHER: theirs[:seeds]})
    paired = {"than": (OTHER,)} if theirs else {}
    found = FORMS[case.form](runs=(ONE,), metric="test_mse", **paired, **case.settings).judge(
        evidence
    )
    assert found.outcome == Outcome.UNDECIDED
    assert ONE in found.missing
    assert found.leaning == (Outcome.HOLDS if seeds else Outcome.UNDECIDED)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_seeds_that_do_not_settle_it_are_to_be_twice_as_many(case: Case) -> None:
    ours, theirs = case.undecided
    evidence = make_evidence({ONE: ours, OTHER: theirs})
    paired = {"than": (OTHER,)} if theirs else {}
    found = FORMS[case.form](runs=(ONE,), metric="test_mse", **paired, **case.settings).judge(
        evidence
    )
    assert not found.missing
    assert found.unsettled[0] == (ONE, 2 * len(ours))


def test_a_line_that_no_curve_passes_needs_no_more_seeds() -> None:
    evidence = make_evidence({ONE: HIGH, OTHER: HIGH})
    statement = FORMS["earlier"](runs=(ONE,), metric="test_mse", than=(OTHER,), line=0.1)
    found = statement.judge(evidence)
    assert (found.outcome, found.leaning) == (Outcome.UNDECIDED, Outcome.UNDECIDED)
    assert "more seeds would not tell" in found.words[0]
    assert found.missing == found.unsettled == ()


def test_every_form_is_here() -> None:
    assert {case.form for case in CASES.values()} | {"diverges", "ratio", "study", "tuned"} == set(
        FORMS
    )


def test_divergence() -> None:
    statement = Diverges(runs=(ONE,), metric="test_mse", within=1.0)
    whole = [make_run(ONE, seed, [0.1]) for seed in range(3)]
    # of five steps an epoch
    ended = [replace(run, result=None, diverged=True, step=4) for run in whole]
    late = [replace(run, step=40) for run in ended]
    for runs, outcome in (
        (ended, Outcome.HOLDS),
        (late, Outcome.FAILS),
        (whole, Outcome.FAILS),
        (ended[:2], Outcome.UNDECIDED),
        ([ended[0], *whole[1:]], Outcome.UNDECIDED),
        ([], Outcome.UNDECIDED),
    ):
        assert statement.judge(Evidence(runs)).outcome == outcome


def test_tuned_rates() -> None:
    normalised, plain = (
        tuple(f"mlp/cifar10-60{kind}-rate-{rate}" for rate in ("0.01", "0.1"))
        for kind in ("-bn", "")
    )
    statement = Tuned(runs=normalised, than=plain, metric="test_accuracy")

    def judge(large: float, small: float, seeds: int = 3) -> Outcome:
        best = dict(zip((*normalised, *plain), (0.5, large, 0.5, small), strict=True))
        runs = [
            make_run(name, seed, [value], metric="accuracy")
            for name, value in best.items()
            for seed in range(seeds)
        ]
        return statement.judge(Evidence(runs)).outcome

    assert judge(0.6, 0.4) == Outcome.HOLDS
    assert judge(0.4, 0.6) == Outcome.FAILS
    assert judge(0.6, 0.4, seeds=2) == Outcome.UNDECIDED
    assert judge(0.6, 0.4, seeds=0) == Outcome.UNDECIDED


@pytest.mark.parametrize(
    ("minutes", "expected"),
    [
        ([2.0, 2.1, 1.9], Outcome.HOLDS),
        ([4.0, 4.1, 4.2], Outcome.FAILS),
        ([2.0, 4.0, 6.0], Outcome.UNDECIDED),
        ([2.0], Outcome.UNDECIDED),
    ],
)
def test_ratio_of_times(minutes: list[float], expected: Outcome) -> None:
    def runs(recipe: str, times: list[float]) -> list[Any]:
        return [make_run(recipe, k, [0.1], minutes=time) for k, time in enumerate(times)]

    evidence = Evidence([*runs(ONE, minutes), *runs(OTHER, [1.0, 1.01, 0.99])])
    statement = Ratio(runs=(ONE,), than=(OTHER,), metric="minutes_per_epoch", low=1.5, high=2.5)
    assert statement.judge(evidence).outcome == expected


def test_accuracies_are_better_when_they_are_higher() -> None:
    evidence = make_evidence({ONE: HIGH, OTHER: LOW}, "accuracy")
    for form, settings in (("better", {"than": (OTHER,)}), ("ends", {"line": 0.7})):
        statement = FORMS[form](runs=(ONE,), metric="test_accuracy", **settings)
        assert statement.judge(evidence).outcome == Outcome.HOLDS


def test_every_recipe_has_to_hold() -> None:
    statement = Ends(runs=(ONE, OTHER), metric="test_mse", line=0.2)
    assert statement.judge(make_evidence({ONE: LOW, OTHER: HIGH})).outcome == Outcome.FAILS
    found = statement.judge(make_evidence({ONE: LOW}))
    assert (found.outcome, found.missing) == (Outcome.UNDECIDED, (OTHER,))


@pytest.mark.parametrize(
    ("seen", "n", "outcome"),
    [
        (3, 3, Outcome.HOLDS),
        (0, 3, Outcome.FAILS),
        (2, 2, Outcome.UNDECIDED),
        (2, 3, Outcome.UNDECIDED),
        (6, 7, Outcome.UNDECIDED),
        (7, 8, Outcome.HOLDS),
        (1, 4, Outcome.UNDECIDED),
        (3, 8, Outcome.FAILS),
        (4, 8, Outcome.UNDECIDED),
        # certainly more than half, and certainly fewer than three in four
        (60, 100, Outcome.HOLDS),
        (50, 100, Outcome.FAILS),
    ],
)
def test_seeds_that_disagree_are_counted(seen: int, n: int, outcome: Outcome) -> None:
    found = by_count(ONE, "falls", [True] * seen + [False] * (n - seen))
    assert found.outcome == outcome
    assert found.words[0].startswith(f"{ONE} falls: {seen} of {n} seeds")
