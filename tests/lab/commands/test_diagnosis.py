import json
from pathlib import Path

import pytest

from cayley.cli import main

TRAIN = "train quickstart --tiny -q --device cpu --set training.steps=1 model.hidden=4"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    words = TRAIN.split()
    assert main([*words, "model.negative_ones=1", "-o", str(tmp_path / "runs")]) == 0
    (path,) = (tmp_path / "runs").rglob("run.json")
    return path.parent


def test_a_run_has_numbers_and_figures(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(run)]) == 0
    text = capsys.readouterr().out
    assert "layers.0.weight_hh_l0 share of D with Re < 0  0.25" in text
    assert "normalisation: not for this network: expected a layer with eigenvalue norm" in text
    record = json.loads((run / "diagnosis" / "diagnosis.json").read_text())
    assert record["weights"] == "selected"
    for name in record["numbers"]:
        assert (run / "diagnosis" / f"{name}.png").read_bytes()[:4] == b"\x89PNG"


def test_a_checkpoint_may_be_given(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--only", "orthogonality", "--json", "-o", str(run / "mine")]
    assert main(["diagnose", str(run / "checkpoint.pt"), *words]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["weights"], [*record["numbers"]]) == ("last", ["orthogonality"])
    assert (run / "mine" / "orthogonality.png").exists()
    assert main(["diagnose", str(run / "other.pt"), *words]) == 4
    assert "or one of checkpoint.pt, best-valid.pt, best-test.pt" in capsys.readouterr().err
