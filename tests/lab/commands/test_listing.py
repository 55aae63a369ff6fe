import json
from pathlib import Path

import pytest

from cayley import cli
from cayley.lab.commands import listing
from cayley.lab.recipes import published, tables


def names(capsys: pytest.CaptureFixture[str], *arguments: str) -> set[str]:
    assert cli.main(["list", "--json", *arguments]) == 0
    return {json.loads(line)["recipe"] for line in capsys.readouterr().out.splitlines()}


@pytest.mark.parametrize("option", [(), ("--model",)])
def test_a_name_is_found_however_it_is_spelt(
    option: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert names(capsys, *option, "nc-gru") == names(capsys, *option, "NCGRU") != set()


def test_all_words_are_looked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert names(capsys, "nc-gru", "ptb") < names(capsys, "ptb")
    assert "lstm/characters-350" in names(capsys, "ptb")


def test_what_papers_call_a_task_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    permuted = {
        entry.name
        for table in tables().values()
        for entry in table.entries
        if entry.recipe().task.settings.get("order") == "permuted"
    }
    assert names(capsys, "--task", "pmnist") == permuted
    assert "scornn/timit-224" in names(capsys, "--task", "timit")
    assert "scornn/mnist-170" in names(capsys, "willmott")


def test_the_wording_of_claims_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    recipes = (entry.recipe() for table in tables().values() for entry in table.entries)
    recipe = next(recipe for recipe in recipes if recipe.claims)
    assert recipe.name in names(capsys, *published.claim(recipe.claims[0]).text.split())
    # but not where names have the words: claims compare one network to others
    assert all("lstm" in name for name in names(capsys, "lstm", "--task", "timit"))


def test_nothing_found_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "quikstart"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "cayley: found no recipe with quikstart: did you mean quickstart?\n"


def test_nothing_is_cut_when_piped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert cli.main(["list", "timit", "lstm"]) == 0
    piped = capsys.readouterr().out.splitlines()
    assert max(map(len, piped)) > 100
    assert not any(line != line.rstrip() for line in piped)
    monkeypatch.setattr(listing.sys.stdout, "isatty", lambda: True, raising=False)
    assert cli.main(["list", "timit", "lstm"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) > len(piped)


def test_only_what_can_be_run_with_the_data_at_hand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for split in ("train", "valid", "test"):
        (tmp_path / f"ptb.char.{split}.txt").write_text("")
    found = names(capsys, "--data", str(tmp_path))
    assert "lstm/characters-350" in found
    assert "quickstart" in found
    assert not {"scornn/mnist-170", "scornn/timit-224", "sage/products-adam"} & found
    assert cli.main(["list", "--data", str(tmp_path), "scornn/mnist"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith(f"left out, whose data are not in {tmp_path}: mnist\n")
    gone = tmp_path / "gone"
    assert cli.main(["list", "--data", str(gone), "scornn/mnist"]) == 0
    assert f"are not in {gone}, which does not exist: mnist" in capsys.readouterr().err
    assert cli.main(["train", "scornn/mnist-170", "--data", str(gone), "-o", str(tmp_path)]) == 1
    assert "3 folders below it, got no such folder. Get it" in capsys.readouterr().err
