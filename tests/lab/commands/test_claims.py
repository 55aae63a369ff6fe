import json

import pytest

from cayley import cli
from cayley.lab.recipes import published


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["list", *arguments]) == 0
    return capsys.readouterr().out


def test_claims_are_listed_with_what_covers_them(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "--claims")
    for id in published.claims():
        assert f"{id} (" in out
    words = {word.strip(",") for word in out.split()}
    assert {"scornn/mnist-170-rho-0", "eurnn/adding-750-tunable"} <= words
    assert "tests/layers/test_gru.py::test_jacobian_bound" in words
    assert "studies: gradient-stability" in out


def test_claims_are_chosen_as_recipes_are(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "--claims", "--json", "--paper", "pospisil", "--task", "word-ptb")
    (one,) = map(json.loads, lines.splitlines())
    assert one["id"] == "ncgru-which-weights"
    assert "nc-gru/words-all" in one["recipes"]
    assert one["reason"] == ""
    lines = run(capsys, "nonpositive", "--claims", "--json").splitlines()
    assert {json.loads(line)["id"] for line in lines} == {
        "modrelu-nonpositive-bias-hurts",
        "scurnn-nonpositive-bias",
    }
    for what in ("--claims", "--missing"):
        assert cli.main(["list", what, "--model", "nothing like it"]) == 0
        out, err = capsys.readouterr()
        assert not out
        assert "is about that: use fewer words" in err


def test_what_no_recipe_serves_is_listed_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = run(capsys, "--missing")
    assert out.count("not in this library: GORU, nnRNN.") == 1
    assert "claims: slides-adding, slides-copying" in out
    ids = {json.loads(line)["id"] for line in run(capsys, "--missing", "--json").splitlines()}
    assert ids == {id for gap in published.gaps() for id in (*gap.results, *gap.claims)}
    assert ids <= {word.strip(",") for word in out.split()}
    for other in (["--claims"], ["--data", "."]):
        with pytest.raises(SystemExit):
            cli.main(["list", "--missing", *other])
        assert "not allowed with argument" in capsys.readouterr().err
