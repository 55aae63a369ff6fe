from pathlib import Path
from typing import Any

import pytest
from lab.verdicts.made_up import make_run

from cayley.lab.errors import RecipeError
from cayley.lab.recipes import find_recipe, published, tables
from cayley.lab.studies import STUDIES
from cayley.lab.verdicts import Evidence, Judge, Outcome, judge_claims, judges, judging
from cayley.lab.verdicts.studied import StudyNumber

NAMES = {entry.name for table in tables().values() for entry in table.entries}
AUDIO = ("segsnr_db", "stoi", "pesq")


def test_every_claim_has_one_judge_or_one_reason() -> None:
    for name, claim in published.claims().items():
        gaps = sum(name in gap.claims for gap in published.gaps())
        own = (name in judges()) + (claim.same_as is not None)
        # a claim that repeats another may be named as a gap beside it
        assert own + (gaps if claim.same_as is None else 0) == 1, name
    assert set(judges()) <= set(published.claims())


@pytest.mark.parametrize("judge", judges().values(), ids=judges())
def test_judges_ask_for_what_recipes_measure(judge: Judge) -> None:
    for statement in judge.statements:
        if isinstance(statement, StudyNumber):
            continue
        assert set(statement.recipes) <= NAMES
        quantity = statement.quantity
        if quantity.split and quantity.metric not in AUDIO:
            for name in statement.recipes:
                splits = find_recipe(name).recipe().evaluation.splits
                assert quantity.split in splits or statement.metric == "train_loss"


def test_without_runs_nothing_holds_but_theorems() -> None:
    for verdict in judge_claims(Evidence([])):
        if verdict.finding.outcome == Outcome.HOLDS:
            assert all(words.startswith("tested by tests/") for words in verdict.finding.words)
        assert verdict.finding.outcome != Outcome.FAILS


def test_theorems_name_tests_that_exist() -> None:
    root = Path(__file__).parents[3]
    for gap in published.gaps():
        for test in gap.tests:
            path, _, name = test.partition("::")
            assert f"def {name.partition('[')[0]}(" in (root / path).read_text()


def test_same_claims_have_the_same_verdict() -> None:
    found = {one.claim.id: one for one in judge_claims(Evidence([]))}
    for name, one in found.items():
        if one.claim.same_as:
            assert one.finding == found[one.claim.same_as].finding, name


def test_runs_with_other_settings_count_for_nothing() -> None:
    run = make_run("quickstart", 1, [0.1])
    assert len(Evidence([run]).trials("quickstart")) == 1
    changed = find_recipe("quickstart").recipe(overrides=["optim.lr=1.0"])
    other = type(run)(run.folder, changed, run.description, run.evaluations, 1, run.result)
    assert not Evidence([other]).trials("quickstart")


def test_judges_of_studies_judge_the_claims_that_these_decide() -> None:
    for name, judge in judges().items():
        for statement in (*judge.statements, *judge.instead):
            if isinstance(statement, StudyNumber):
                assert name in STUDIES[statement.study].claims
    decided = {id for study in STUDIES.values() for id in study.claims}
    own = {id for id in decided if published.claim(id).same_as is None}
    assert own <= set(judges())
    assert all(published.claim(id).same_as in decided for id in decided - own)


@pytest.mark.parametrize("name", ["proteins", "products"])
def test_what_lacks_its_data_cannot_be_run_until_there_are_runs(name: str) -> None:
    judge, metric = judges()[f"bnp-{name}-curve"], {"proteins": "rocauc", "products": "accuracy"}
    found = judge.judge(Evidence([]))
    assert (found.outcome, found.missing) == (Outcome.CANNOT, ())
    assert found.words[0].startswith(f"ogbn-{name} (")
    run = make_run(f"sage/{name}-sgd", 1, [0.5], metric=metric[name])
    assert judge.judge(Evidence([run])).outcome == Outcome.UNDECIDED


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"sais": []}, r"expected says, data, part and instead, got \['sais'\]"),
        ({"part": "a half"}, "expected part and instead together, got one"),
        ({"instead": [{"form": "no"}]}, "expected part and instead together, got one"),
        ({"says": [{"form": "no"}]}, "expected a form among .*, got 'no'"),
    ],
)
def test_judges_that_are_wrong(table: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        judging._read("some-claim", table)
