import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from processes import FORKED

import cayley.cli
from cayley.lab.commands import cluster
from cayley.lab.commands.cluster import Share
from cayley.lab.commands.queue import Work
from cayley.lab.runs import find_runs, read_run
from cayley.lab.sweeps import engine

pytest.importorskip("optuna", reason="sweeps need the extra sweep")

SPACE = """
title = "A few rates"
recipe = "quickstart"
metric = "valid_mse"
trials = 3
set = ["training.steps=4", "evaluation.every=2"]
sampler = { name = "random", seed = 1 }
[parameters]
optim.lr = { low = 1e-4, high = 1e-1, log = true }
model.hidden = [[6], [8]]
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(SPACE)
    return tmp_path


def run(*arguments: str) -> int:
    return cayley.cli.main(["sweep", *arguments])


QUICK = ("--tiny", "--device", "cpu", "--threads", "1")


def test_a_sweep_from_its_space_to_a_recipe(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("mine.toml", *QUICK) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in out] == ["trial 0", "trial 1", "trial 2", "mine"]
    assert "model.hidden=[" in out[0]
    folders = find_runs(place / "runs")
    assert [folder.name for folder in folders] == ["trial-0000", "trial-0001", "trial-0002"]
    for number, folder in enumerate(folders):
        description, recipe = read_run(folder)
        assert description.trial is not None
        assert (description.trial.study, description.trial.number) == ("mine", number)
        assert description.trial.params["optim.lr"] == recipe.optim.lr
        assert f"optim.lr={recipe.optim.lr}" in description.overrides
    # there is nothing left to do
    assert run("mine.toml", *QUICK, "--json") == 0
    assert capsys.readouterr().out == ""
    assert run("mine.toml", *QUICK, "--trials", "4", "--json") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert (json.loads(line)["trial"], json.loads(line)["state"]) == (3, "complete")

    assert run("status", "--json") == 0
    status = json.loads(capsys.readouterr().out)
    assert status["states"] == {"complete": 4}
    assert run("status", "mine") == 0
    assert "mine: 4 trials, 4 complete" in capsys.readouterr().out
    assert run("best", "mine") == 0
    text = capsys.readouterr().out
    best = folders[0].parent / f"trial-{status['best_trial']:04}"
    assert text.startswith(f"# the best of 4 finished trials of mine: trial {status['best_trial']}")
    (place / "best.toml").write_text(text)
    assert (
        tomllib.loads(text)["optim"] == tomllib.loads((best / "recipe.toml").read_text())["optim"]
    )
    assert cayley.cli.main(["train", "best.toml", *QUICK, "-q", "--output", "again"]) == 0
    capsys.readouterr()

    files = ["--figures", "figures", "--markdown", "report.md", "--csv", "csv"]
    assert cayley.cli.main(["report", "runs", "-o", "report.html", *files]) == 0
    assert "mine: 4 trials of quickstart: 4 complete." in capsys.readouterr().out
    page = (place / "report.html").read_text()
    assert '<section id="sweep-mine">' in page
    assert "Parallel coordinates" in page
    names = {"sweep-mine-history.png", "sweep-mine-coordinates.png"}
    assert {path.name for path in (place / "figures").iterdir()} == names
    assert "## A few rates" in (place / "report.md").read_text()
    assert (place / "csv" / "sweep-mine.csv").read_text().count("\n") == 5
    # what is kept for good is still a sweep
    assert cayley.cli.main(["archive", "runs", "-o", "kept"]) == 0
    assert cayley.cli.main(["report", "kept", "-o", "kept.html"]) == 0
    assert "mine: 4 trials of quickstart: 4 complete." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("valid_mse", "test_mse", "the test set chooses the settings, which is optimistic"),
        (
            '"training.steps=4"',
            '"training.steps=4", "evaluation.select=test"',
            "the test set chooses the evaluations, which is optimistic",
        ),
    ],
)
def test_a_choice_by_the_test_set_is_said_with_every_best(
    old: str, new: str, words: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "mine.toml").write_text(SPACE.replace(old, new))
    assert run("mine.toml", *QUICK, "--trials", "1") == 0
    out, err = capsys.readouterr()
    assert f"mine: {words}" in err
    assert words in out.splitlines()[-1]
    assert run("status") == 0
    assert words in capsys.readouterr().out.splitlines()[-1]
    assert run("status", "--json") == 0
    assert json.loads(capsys.readouterr().out)["optimistic"] == words
    assert run("best", "mine") == 0
    assert words in capsys.readouterr().out.splitlines()[0]
    assert cayley.cli.main(["report", "runs", "-o", "report.html"]) == 0
    assert words.removeprefix("the ") in capsys.readouterr().out


@pytest.mark.slow
def test_workers_in_processes_of_their_own(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cayley.lab.commands.side_by_side.subprocess", FORKED)
    assert run("mine.toml", *QUICK, "--jobs", "2", "--study", "two", "--trials", "2") == 0
    out, err = capsys.readouterr()
    assert "two: best valid_mse" in out
    assert {"worker 1: done", "worker 2: done"} <= {
        line.partition(",")[0] for line in err.splitlines()
    }
    assert [path.name for path in find_runs(place / "runs" / "two")] == ["trial-0000", "trial-0001"]


def test_workers_as_tasks_of_a_cluster(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def do_here(works: Sequence[Work], address: str, share: Share, file: Path, **_: Any) -> int:
        given.update(works=works, address=address, share=share)
        # a node of another folder, as far as paths go
        monkeypatch.chdir("/")
        command = works[-1].command
        return cayley.cli.main([*command[command.index("sweep") :]])

    monkeypatch.setattr(cluster, "run_on_cluster", do_here)
    assert run("mine.toml", *QUICK, "--ray", "auto", "--jobs", "2", "--no-graph") == 0
    assert [work.name for work in given["works"]] == ["worker 1", "worker 2"]
    assert (given["address"], given["share"]) == ("auto", Share(gpus=0.0, cpus=1))
    assert "--no-graph" in given["works"][0].command
    assert len(find_runs(place / "runs")) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "expected a space, or best or status"),
        (("mine.toml", "yours.toml"), "expected one space"),
        (("best",), "cayley sweep best STUDY"),
        (("best", "mine"), "expected sweeps in journal:///"),
        (("status",), "expected sweeps in journal:///"),
        (("scornn-mnits",), "did you mean scornn-mnist"),
        (("mine.toml", *QUICK, "--set", "training.steps=-1"), "training.steps: expected"),
        (("mine.toml", *QUICK, "--storage", "redis://a"), "--storage: expected journal:///path"),
        (("mine.toml", *QUICK, "--gpus-per-run", "1"), "expected --gpus-per-run with a cluster"),
        (("mine.toml", *QUICK, "--ray", "local", "--fetch"), "expected an output folder that all"),
    ],
)
def test_what_is_refused(
    arguments: tuple[str, ...], words: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) in (2, 4)
    err = capsys.readouterr().err
    assert words in err
    assert not (place / "runs" / "mine").exists()


def test_missing_data_are_said_before_there_is_a_study(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("scornn-mnist", "--data", str(place)) == 1
    assert "mnist" in capsys.readouterr().err.lower()
    assert not (place / "runs").exists()


def test_another_study_than_there_is(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("mine.toml", *QUICK, "-q", "--trials", "1") == 0
    assert run("best", "your") == 4
    assert "got 'your': there are mine" in capsys.readouterr().err


def test_without_the_extra_a_message_names_it(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engine, "find_spec", lambda name: None)
    assert run("mine.toml", *QUICK) == 1
    assert "pip install 'cayley[sweep]'" in capsys.readouterr().err


def test_ready_spaces_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--list") == 0
    assert "scornn-mnist: scoRNN on pixel MNIST" in capsys.readouterr().out
    assert run("--list", "--json") == 0
    known = [json.loads(line)["space"] for line in capsys.readouterr().out.splitlines()]
    assert {"atn-windows", "cifar10-bnp", "nc-gru-order"} <= {*known}
