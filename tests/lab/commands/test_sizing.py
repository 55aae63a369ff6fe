import json
from pathlib import Path

import pytest

from cayley import cli
from cayley.lab.runs import find_runs


def test_parameters_are_a_number_of_units(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("--set", "model.parameters=1k", "training.steps=2", "--tiny", "--device", "cpu")
    assert cli.main(["train", "quickstart", "-q", "-o", str(tmp_path), *settings]) == 0
    (folder,) = find_runs(tmp_path)
    found = json.loads((folder / "run.json").read_text())
    # inputs, free numbers, biases, output
    assert found["parameters"] == 41 * 2 + 41 * 40 // 2 + 41 + 42 == 985
    assert "model.hidden=41" in found["overrides"]
    assert "quickstart: model.hidden=41 for 985 parameters" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:optim.recurrent_lr. without effect")
def test_another_network_is_fitted_without_the_arguments_of_the_old_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ("model.name=LSTM", "model.parameters=5k", "training.steps=2")
    settings = ("-o", str(tmp_path), "--set", *changes, "--tiny", "--device", "cpu")
    assert cli.main(["train", "scornn/mnist-170", *settings]) == 0
    assert "left out, as settings of ScoRNN: negative_ones = " in capsys.readouterr().err
    (folder,) = find_runs(tmp_path)
    assert 4500 < json.loads((folder / "run.json").read_text())["parameters"] < 5500


@pytest.mark.parametrize("number", ["many", "0", "-3", "1e3k"])
def test_what_is_no_number(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "quickstart", "--set", f"model.parameters={number}"]) == 2
    assert "expected a number such as 16k" in capsys.readouterr().err
