"""Every study, tiny."""

import math
from pathlib import Path

import pytest

from cayley.lab.errors import RecipeError
from cayley.lab.recipes import published
from cayley.lab.runs import Machine, read_study
from cayley.lab.studies import STUDIES, Study, find_study, run_study
from cayley.lab.training import RunSettings
from cayley.lab.verdicts import judges
from cayley.lab.verdicts.studied import StudyNumber

# what no document claims
BEYOND = {"rebase"}
SETTINGS = RunSettings(Machine("cpu", threads=1))


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_gives_finite_numbers_for_its_judges_and_a_picture(study: Study, tmp_path: Path) -> None:
    run_study(study, tmp_path, tiny=True, settings=SETTINGS)
    record = read_study(tmp_path / study.name)
    assert (record.study, record.claims) == (study.name, study.claims)
    assert set(record.changed) == set(study.tiny)
    (one,) = record.seeds.values()
    for value in one.numbers.values():
        assert all(map(math.isfinite, value if isinstance(value, list) else [value]))
    asked = {
        statement.number
        for judge in judges().values()
        for statement in (*judge.statements, *judge.instead)
        if isinstance(statement, StudyNumber) and statement.study == study.name
    }
    assert asked or study.name in BEYOND
    assert all(len(record.values(number)) == 1 for number in asked)
    assert (tmp_path / study.name / "picture.png").read_bytes()[:4] == b"\x89PNG"


def test_studies_decide_claims_that_there_are() -> None:
    for name, study in STUDIES.items():
        assert name == study.name
        assert bool(study.claims) is (name not in BEYOND)
        assert all(published.claim(id) for id in study.claims)
        assert set(study.tiny) <= set(study.settings)


def test_an_unknown_name_is_told_the_nearest() -> None:
    with pytest.raises(RecipeError, match="did you mean heatmaps"):
        find_study("heatmap")
    with pytest.raises(RecipeError, match="see cayley study --list"):
        find_study("xyz")
