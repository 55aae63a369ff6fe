from pathlib import Path
from typing import Any

import pytest

from cayley.lab.runs import Machine
from cayley.lab.studies import rebasing, run_study
from cayley.lab.studies.rebasing import REBASE
from cayley.lab.training import RunSettings

SETTINGS = RunSettings(Machine("cpu", threads=1))


def test_eleven_fixed_and_one_that_is_chosen_again() -> None:
    settings = REBASE.settings
    assert settings["shares"] == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    assert settings["recipes"] == ["scornn/mnist-170", "scornn/pmnist-170"]


def test_numbers_are_of_what_was_trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With scores that are known, so are the best share and the leads."""
    trained: list[Any] = []

    class Scored(rebasing.Subject):
        def train(self, steps: int) -> list[float]:
            trained.append(self.recipe)
            return super().train(steps)

        def score(self, split: str) -> float:  # pyrefly: ignore[bad-override]
            assert 0.0 <= super().score("valid") <= 1.0
            valid = 0.9 - 0.1 * self.recipe.model.options["negative_ones"]
            valid = 0.95 if self.recipe.optim.rebase else valid
            # what the validation set says is best is worst here
            return {"valid": valid, "test": 1.0 - valid}[split]

    monkeypatch.setattr(rebasing, "Subject", Scored)
    record = run_study(
        REBASE, tmp_path, changes=["shares=[0.5, 0.0, 1.0]"], tiny=True, settings=SETTINGS
    )
    assert [one.model.options["negative_ones"] for one in trained] == [3, 0, 6, 0]
    assert [one.optim.rebase for one in trained] == ["", "", "", "auto"]
    (seed,) = record.seeds.values()
    assert seed.numbers["mnist_170_fixed"] == pytest.approx([0.6, 0.9, 0.3])
    assert seed.numbers["mnist_170_test_fixed"] == pytest.approx([0.4, 0.1, 0.7])
    expected = {"rebased": 0.95, "best": 0.9, "best_share": 0.0, "lead": 0.05}
    expected |= {"lead_over_worst": 0.65, "test_rebased": 0.05, "test_lead": -0.05}
    for name, value in expected.items():
        assert seed.numbers[f"mnist_170_{name}"] == pytest.approx(value)


def test_losses_lead_where_they_are_lower(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        rebasing.Subject, "score", lambda self, split: 0.1 if self.recipe.optim.rebase else 0.3
    )
    changes = ['recipes=["scornn/adding-200"]']
    record = run_study(REBASE, tmp_path, changes=changes, tiny=True, settings=SETTINGS)
    (seed,) = record.seeds.values()
    assert seed.numbers["adding_200_lead"] == pytest.approx(0.2)
