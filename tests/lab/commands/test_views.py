import json
from dataclasses import replace

import pytest

from cayley import cli
from cayley.lab.commands import views as command
from cayley.lab.recipes.views import find_view, views


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["list", "--views", *words]) == 0
    return capsys.readouterr().out


def test_names_are_whole_and_what_is_no_view_has_its_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = listed(capsys)
    assert set(views()) <= set(out.split())
    assert "Figure 2.10: A study: cayley study unitarity." in " ".join(out.split())


def test_filters(capsys: pytest.CaptureFixture[str]) -> None:
    out = listed(capsys, "--paper", "slides2020", "--task", "speech")
    names = [line.split()[0] for line in out.splitlines() if line.startswith("  ")]
    assert names == ["slides2020-timit-table", "slides2020-timit-figure"]


def test_brackets_are_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    view = replace(find_view("helfrich2020-figure-2.8"), title="Error [dB] and [/s]")
    monkeypatch.setattr(command, "views", lambda: {view.name: view})
    assert "Error [dB] and [/s]" in listed(capsys)


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = listed(capsys, "--paper", "helfrich2020-figure-2.17", "--json").splitlines()
    facts = json.loads(line)
    assert (facts["view"], facts["location"]) == ("helfrich2020-figure-2.17", "Figure 2.17")
    assert {"recipe": "enrnn/adding-750", "label": "64", "set": []} in facts["recipes"]
