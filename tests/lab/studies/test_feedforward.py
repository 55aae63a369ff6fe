"""The slice of CIFAR-10, with scores that are known."""

from pathlib import Path
from typing import Any

import pytest

from cayley.lab.errors import NotFinite
from cayley.lab.recipes import Recipe
from cayley.lab.runs import Machine, SeedRecord
from cayley.lab.studies import feedforward, run_study
from cayley.lab.studies.feedforward import CIFAR10_SLICE, _Curves
from cayley.lab.tasks import Source
from cayley.lab.training import RunSettings

MACHINE = Machine("cpu", threads=1)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Recipe]:
    """The recipes that are trained, with accuracies that only their networks and rates decide."""
    recipes: list[Recipe] = []

    class Known(feedforward.Subject):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            recipes.append(self.recipe)

        def train(self, steps: int) -> list[float]:
            normalised = self.recipe.model.options.get("norm") == "batch"
            if self.recipe.optim.lr == 1.0 and not normalised:
                raise NotFinite("too large a rate")
            # an epoch of the 50 made-up images
            assert steps == {60: 1, 6: 9}[self.recipe.training.batch]
            return []

        def score(self, split: str, metric: Any = None) -> float:  # pyrefly: ignore[bad-override]
            # the reader of the made-up images has to know the split and the metric
            super().score(split, metric)  # pyrefly: ignore[bad-argument-type]
            if split == "train":
                assert metric.name == "cross_entropy"
                return 0.25 if self.recipe.bnp else self.recipe.training.batch / 10
            assert metric is None
            return self.recipe.optim.lr / 10

    monkeypatch.setattr(feedforward, "Subject", Known)
    return recipes


def compute(folder: Path, *changes: str) -> SeedRecord:
    record = run_study(
        CIFAR10_SLICE, folder, changes=changes, tiny=True, settings=RunSettings(MACHINE)
    )
    (seed,) = record.seeds.values()
    return seed


def test_each_network_has_the_rate_that_is_best(trained: list[Recipe], tmp_path: Path) -> None:
    numbers = compute(tmp_path, "rates=[0.1, 1.0]").numbers
    assert [one.optim.lr for one in trained] == 5 * [0.1, 1.0]
    assert numbers["plain_60_best_by_rate"] == pytest.approx([0.01, 0.0])
    assert numbers["bn_60_best_by_rate"] == pytest.approx([0.01, 0.1])
    assert (numbers["plain_60_rate"], numbers["bn_60_rate"]) == (0.1, 1.0)
    assert numbers["bn_60_rate_ratio"] == numbers["bn_6_rate_ratio"] == 10.0
    assert numbers["bn_60_loss_share"] == pytest.approx(6.0 / 0.6)
    assert numbers["bn_6_loss_ratio"] == 1.0
    assert numbers["bnp_60_loss_share"] == pytest.approx(0.25 / 6.0)
    assert numbers["bn_6_early_lead"] == numbers["bn_6_end_lead"] == pytest.approx(0.09)
    assert numbers["bnp_60_early_lead_over_bn"] == pytest.approx(-0.09)
    assert numbers["bnp_60_early_lead_over_plain"] == 0.0


def test_the_slice_and_its_statistics_are_settings(trained: list[Recipe], tmp_path: Path) -> None:
    compute(tmp_path, "train=30", "test=7", 'inference="running"')
    for recipe in trained:
        assert recipe.task.settings == {"train": 30, "test": 7}
        normalised = recipe.model.options.get("norm") == "batch"
        assert recipe.model.options.get("inference") == ("running" if normalised else None)


def test_all_rates_diverge(trained: list[Recipe], tmp_path: Path) -> None:
    with pytest.raises(NotFinite, match=r"expected a rate at which mlp/cifar10-60 is finite, got"):
        compute(tmp_path, "rates=[1.0]")


def test_numbers_of_curves() -> None:
    accuracies = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.5, 0.4, 0.3, 0.2]
    curves = _Curves([2.0] * 9 + [1.0], accuracies)
    assert curves.smooth[:5] == pytest.approx([0.1, 0.15, 0.2, 0.25, 0.3])
    assert curves.numbers == pytest.approx(
        {"loss": 1.0, "best": 0.48, "best_epoch": 8, "early": 0.15, "end": 0.4, "fall": 0.08}
    )


def test_real_images_are_learned(source: Source, tmp_path: Path) -> None:
    settings = RunSettings(MACHINE, data=source.folder)
    changes = ["train=120", "test=60", "rates=[0.1]", "made_up=false"]
    record = run_study(CIFAR10_SLICE, tmp_path, changes=changes, tiny=True, settings=settings)
    (seed,) = record.seeds.values()
    assert seed.numbers["bn_60_loss"] < 2.3
