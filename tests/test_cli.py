import io
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lab.descriptions import make_description
from processes import start

import cayley
from cayley import cli
from cayley.lab.recipes import find_recipe, published, tables, write_recipe
from cayley.lab.report import read_runs, summarize
from cayley.lab.runs import RunFolder, find_runs, load_tensors, read_metrics, read_run

ROOT = Path(__file__).parent.parent
QUICK = ["--tiny", "--threads", "1", "--device", "cpu", "--set", "training.steps=3"]


def run(*arguments: object) -> int:
    return cli.main([str(argument) for argument in arguments])


def test_list_shows_and_filters(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", "--paper", "quickstart") == 0
    out = capsys.readouterr().out
    assert "quickstart" in out
    assert "ScoRNN 80" in out
    assert run("list", "--model", "nothing like it") == 0
    assert capsys.readouterr() == (
        "",
        "cayley: found no recipe with nothing like it: cayley list shows them all\n",
    )
    assert run("list", "--task", "adding", "--paper", "quickstart", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["recipe"], facts["hidden"], facts["data"]) == ("quickstart", 80, "none")


def test_signs_that_cannot_be_shown_are_no_reason_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii", newline=""))
    assert run("list", "--model", "gcn") == 0
    sys.stdout.flush()
    assert b"\\xd7 2" in shown.getvalue()


def test_warnings_of_this_package_are_sentences() -> None:
    ours, other = cayley.__file__, os.__file__
    with cli._plain_warnings():
        assert warnings.formatwarning("too long", UserWarning, ours, 3) == "cayley: too long\n"
        assert "os.py:3: UserWarning" in warnings.formatwarning("it", UserWarning, other, 3)
    assert "UserWarning" in warnings.formatwarning("too long", UserWarning, ours, 3)


def test_several_values_need_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    several = ["train", "quickstart", "--set", "optim.lr=1e-3,3e-4", "-o", str(tmp_path)]
    assert cli.main(several) == 2
    assert "several values need --together" in capsys.readouterr().err
    assert cli.main(["train", "quickstart", "--set", "optim.lr=a", "-o", str(tmp_path)]) == 2
    assert "together" not in capsys.readouterr().err


@pytest.mark.parametrize("columns", [20, 80])
def test_listed_names_are_whole(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert run("list") == 0
    words = set(capsys.readouterr().out.split())
    assert {entry.name for table in tables().values() for entry in table.entries} <= words


def test_what_was_published_and_what_data_it_takes_is_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe = find_recipe("scornn/mnist-170").recipe()
    assert recipe.reported
    for command in (("list", "--model", "scornn", "--task", "mnist"), ("show", recipe.name)):
        assert run(*command) == 0
        out = capsys.readouterr().out
        assert "download" in out
        for name in recipe.reported:
            assert f"{published.result(name).value:g}" in out


def test_show_prints_what_the_code_does_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", "ln-lstm/denoise-100") == 0
    assert "# in the code: task.layout = code, not paper\n" in capsys.readouterr().out
    assert run("show", "ln-lstm/denoise-100", "--variant", "code") == 0
    assert "# in the paper: task.layout = paper, not code\n" in capsys.readouterr().out
    assert run("show", "quickstart") == 0
    assert "# in the" not in capsys.readouterr().out


def test_what_show_prints_can_be_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("show", "quickstart", "--set", "model.hidden=6", "training.steps=3") == 0
    (tmp_path / "mine.toml").write_text(capsys.readouterr().out)
    options = ("-q", "--tiny", "--threads", "1", "--device", "cpu")
    assert run("train", tmp_path / "mine.toml", "-o", tmp_path, *options) == 0
    assert run("train", tmp_path / "mine.toml", "-o", tmp_path, *options) == 4
    (folder,) = find_runs(tmp_path)
    assert folder == tmp_path / "quickstart" / "hidden-6-tiny-seed5544"
    assert run("train", folder / "recipe.toml", "-o", tmp_path / "again", *options) == 0
    capsys.readouterr()


@pytest.mark.slow
@pytest.mark.parametrize("paper", ["", 'paper = "mine"'])
def test_a_recipe_needs_no_listed_paper(
    paper: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.toml").write_text(
        f"""
        name = "mine"
        {paper}
        task = {{ name = "adding", T = 20, train = 40, valid = 20, test = 20 }}
        model = {{ name = "ScoRNN", hidden = 6 }}
        optim = {{ name = "Adam", lr = 1e-3 }}
        training = {{ batch = 20, steps = 2 }}
        """
    )
    assert run("show", tmp_path / "mine.toml") == 0
    assert ("# from: mine" in capsys.readouterr().out) == bool(paper)
    options = ("--device", "cpu", "--threads", 1, "-o", tmp_path / "runs")
    assert run("train", tmp_path / "mine.toml", *options) == 0
    assert "published" not in capsys.readouterr().out
    assert run("report", tmp_path / "runs", "-o", tmp_path / "report.html") == 0
    assert "1 run in 1 row" in capsys.readouterr().out


def test_published_numbers_beside_other_settings_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    permuted = ("--set", "task.order=permuted")
    options = ("--tiny", "--device", "cpu", "--threads", 1, "--data", tmp_path)
    assert run("train", "scornn/mnist-170", *options, *permuted, "-o", tmp_path / "runs") == 0
    out = capsys.readouterr().out
    assert "  published, with other settings: test_accuracy 0.973, helfrich2020" in out
    assert "\n  here: task.order = permuted, not none; " in out
    assert out.endswith("; a few made-up examples\n")
    assert run("show", "scornn/mnist-170", *permuted) == 0
    assert "# published, with other settings: test_accuracy 0.973" in capsys.readouterr().out
    assert run("show", "scornn/mnist-170") == 0
    assert "# published: test_accuracy 0.973" in capsys.readouterr().out


def test_train_prints_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "quickstart", "-o", tmp_path, *QUICK, "--seed", 7) == 0
    out, err = capsys.readouterr()
    (folder,) = find_runs(tmp_path)
    assert folder.name == "steps-3-tiny-seed7"
    assert "seed 7: done, 3 steps in 0:00:0" in out
    assert f"in {folder}" in out
    assert "the best by valid), baseline 0.1667" in out
    assert "to beat: baseline 0.1667 (always 1" in err


def test_json_is_one_object_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "quickstart", "-o", tmp_path, "--json", *QUICK, "training.log=1") == 0
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["kind"] for line in lines] == ["run", "eval", *["train"] * 3, "eval", "result"]
    assert not err
    (folder,) = find_runs(tmp_path)
    assert lines[1:-1] == list(read_metrics(folder))
    # of a finished run, the same without what happened in it
    again = ("train", "quickstart", "-o", tmp_path, "--json", *QUICK, "training.log=1", "--seeds")
    for command in (("resume", folder, "--json"), (*again, 1), (*again, 1, "--together")):
        assert run(*command) == 0
        found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert found[0].items() >= {"kind": "run", "step": 3, "id": lines[0]["id"]}.items()
        assert found[1].items() >= lines[-1].items()
        assert len(found) == 2


def test_seeds_are_runs_that_are_not_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("train", "quickstart", "-o", tmp_path, *QUICK, "--seeds", 2)
    assert run(*arguments) == 0
    assert "quickstart, 2 seeds: valid mse " in capsys.readouterr().out
    folders = find_runs(tmp_path)
    names = ["steps-3-tiny-seed5544", "steps-3-tiny-seed5545"]
    assert [folder.name for folder in folders] == names
    written = [(folder / "result.json").stat().st_mtime_ns for folder in folders]
    (folders[1] / "result.json").unlink()
    assert run(*arguments) == 0
    assert (folders[0] / "result.json").stat().st_mtime_ns == written[0]
    assert (folders[1] / "result.json").stat().st_mtime_ns > written[1]


def test_reproduce_does_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("reproduce", "quickstart", "-o", tmp_path, "-q", *QUICK)
    assert run(*arguments) == 0
    (folder,) = find_runs(tmp_path)
    written = (folder / "result.json").stat().st_mtime_ns
    assert run(*arguments) == 0
    assert (folder / "result.json").stat().st_mtime_ns == written
    (folder / "result.json").unlink()
    assert run(*arguments) == 0
    assert (folder / "result.json").stat().st_mtime_ns > written
    assert run("reproduce", "quickstar", "-o", tmp_path) == 2
    assert "expected a figure or table" in capsys.readouterr().err


@pytest.mark.parametrize("command", [("train", "--seeds", 1), ("reproduce",)])
def test_another_run_is_not_taken_for_the_one_that_is_asked_for(
    command: tuple[object, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *seeds = command
    arguments = (name, "quickstart", *seeds, "-o", tmp_path, "-q", *QUICK)
    assert run(*arguments) == 0
    (folder,) = find_runs(tmp_path)
    # what cannot change the numbers may differ
    assert run(*arguments, "--threads", 2, "--data", tmp_path) == 0
    assert find_runs(tmp_path) == [folder]
    assert run(*arguments, "--precision", "64-true") == 0
    double = folder.with_name("steps-3-tiny-float64-seed5544")
    assert find_runs(tmp_path) == [double, folder]
    double.rename(tmp_path / "double")
    folder.rename(double)
    assert run(*arguments, "--precision", "64-true") == 4
    assert f"in {double}, got one with precision 32-true, not 64-true" in capsys.readouterr().err
    real = folder.with_name("steps-3-seed5544")
    double.rename(real)
    assert run(*(word for word in arguments if word != "--tiny")) == 4
    assert "a few made-up examples: choose another --output" in capsys.readouterr().err
    real.rename(folder)
    if name == "train":
        folder.rename(folder.with_name("steps-3-tiny-seed7"))
        assert run(*arguments, "--seed", 7) == 4
        assert "got one with seed 5544, not 7: choose" in capsys.readouterr().err


def test_a_run_goes_on_on_the_device_that_is_asked_for(tmp_path: Path) -> None:
    arguments = ("train", "quickstart", "--seeds", 1, "-o", tmp_path, "-q", *QUICK)
    assert run(*arguments) == 0
    (folder,) = find_runs(tmp_path)
    description, _ = read_run(folder)
    elsewhere = replace(description.machine, accelerator="cuda:99")
    with RunFolder(folder) as writer:
        writer.description = description
        writer.write_json("run.json", replace(description, machine=elsewhere).to_json())
    (folder / "result.json").unlink()
    assert run(*arguments) == 0
    (event,) = (record for record in read_metrics(folder) if record["kind"] == "event")
    assert event["message"] == "on cpu"


def test_a_run_of_an_edited_recipe_or_of_other_data_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("task.corpus=own", "training.batch=4", "training.epochs=1", "model.hidden=6")
    assert run("show", "lstm/characters-350", "--set", *settings, "model.embedding=5") == 0
    mine = tmp_path / "mine.toml"
    # of an edited copy of a recipe of the package, the folder has another name
    mine.write_text(capsys.readouterr().out.replace("lstm/characters-350", "mine"))
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("In Ulm, um Ulm, und um Ulm herum. " * 20)
    arguments = ("train", mine, "--seeds", 1, "-q", "--device", "cpu", "-o", tmp_path / "runs")
    assert run(*arguments, "--data", tmp_path / "a.txt") == 0
    assert run(*arguments) == 0
    assert run(*arguments, "--data", tmp_path / "b.txt") == 4
    assert f"data from {tmp_path / 'a.txt'}, not {tmp_path / 'b.txt'}" in capsys.readouterr().err
    mine.write_text(mine.read_text().replace("hidden = 6", "hidden = 7"))
    assert run(*arguments) == 4
    assert "got one with model.hidden = 6, not 7: choose" in capsys.readouterr().err


def test_one_that_fails_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wild = ("optim.name=SGD", "optim.lr=1e30", "training.steps=50")
    assert run("train", "quickstart", "-o", tmp_path, "--seeds", 2, *QUICK, *wild) == 3
    err = capsys.readouterr().err
    assert "quickstart, seed 5544: the loss of step" in err
    assert "quickstart, seed 5545: the loss of step" in err
    assert run("train", "quickstart", "-o", tmp_path / "b", "-q", *QUICK, *wild) == 3
    assert capsys.readouterr().err.startswith("cayley: the loss of step")


def test_a_damaged_run_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("train", "quickstart", "-o", tmp_path, *QUICK, "--seeds", 3)
    assert run(*arguments, "-q") == 0
    first, second, _ = find_runs(tmp_path)
    (first / "result.json").write_text("{")
    (second / "result.json").unlink()
    (second / "checkpoint.pt").write_bytes(b"garbage")
    assert run(*arguments) == 4
    out, err = capsys.readouterr()
    assert "seed 5546: done" in out
    assert f"quickstart, seed 5544: could not use {first / 'result.json'}" in err
    assert f"quickstart, seed 5545: could not use {second / 'checkpoint.pt'}" in err


def test_an_archive_is_whole_and_not_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    diverging = ("--set", "optim.lr=1e30", "optim.recurrent_lr=1e30", "training.clip_norm=0")
    assert run("train", "quickstart", "-q", "-o", tmp_path / "runs", *QUICK, *diverging) == 3
    (folder,) = find_runs(tmp_path)
    settings = (folder / "recipe.toml").read_bytes()
    (folder / "recipe.toml").unlink()
    assert run("archive", folder, "-o", tmp_path / "archive") == 0
    (archived,) = (path.parent for path in (tmp_path / "archive").rglob("run.json"))
    assert (archived / "recipe.toml").read_bytes() == settings
    before = {path.name: path.read_bytes() for path in archived.iterdir()}
    capsys.readouterr()
    assert run("resume", archived, "-q") == 4
    assert "got an archive in" in capsys.readouterr().err
    names = {path.name for path in archived.iterdir()} - {"lock"}
    assert {name: (archived / name).read_bytes() for name in names} == before


def test_evaluate_and_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("train", "quickstart", "-o", tmp_path, "-q", *QUICK)
    (folder,) = find_runs(tmp_path)
    result = json.loads((folder / "result.json").read_text())
    assert run("evaluate", folder, "--split", "valid", "--json") == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    assert scores == result["selected"]["valid"]["scores"]
    assert run("evaluate", folder) == 0
    assert f"test mse {result['selected']['test']['scores']['mse']:.6g}" in capsys.readouterr().out
    assert run("resume", folder) == 0
    assert "done, 3 steps" in capsys.readouterr().out


def test_evaluate_says_what_the_weights_of_an_unfinished_run_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("train", "quickstart", "-o", tmp_path, "-q", *QUICK)
    run(*arguments)
    (folder,) = find_runs(tmp_path)
    assert run("evaluate", folder) == 0
    assert capsys.readouterr().err == ""
    # as if it had been killed while it wrote its result
    (folder / "result.json").unlink()
    best = load_tensors(folder, "best-valid.pt")["step"]
    for weights, words in (
        ("selected", f"weights of step {best}, best by valid"),
        ("last", "weights of step 3, the last"),
    ):
        assert run("evaluate", folder, "--weights", weights) == 0
        out, err = capsys.readouterr()
        assert err == f"not finished (stopped): step 3 of 3; {words}\n"
        assert out.startswith("test mse ")
    assert run("evaluate", folder, "--json") == 0
    known = json.loads(capsys.readouterr().out)
    assert (known["state"], known["step"]) == ("stopped", best)


def test_evaluate_says_that_a_run_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # far beyond any float32 after one step
    changes = ("--set", "optim.name=SGD", "optim.lr=1e30", "training.clip_norm=0")
    assert run("train", "quickstart", "-o", tmp_path, "-q", *QUICK, *changes) != 0
    (folder,) = find_runs(tmp_path)
    capsys.readouterr()
    assert run("evaluate", folder) == 0
    err = capsys.readouterr().err
    assert err.startswith("not finished (failed): step ")
    assert err.endswith("; weights of step 0, best by valid\n")


def test_a_finished_run_is_extended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("train", "quickstart", "-o", tmp_path, *QUICK)
    assert run(*arguments, "--extend", 2) == 4
    assert "expected a run in" in capsys.readouterr().err
    assert run(*arguments, "-q") == 0
    assert run(*arguments, "--extend", 2) == 0
    assert "done, 5 steps" in capsys.readouterr().out
    (folder,) = find_runs(tmp_path)
    assert run("resume", folder, "--extend", 1) == 0
    assert "done, 6 steps" in capsys.readouterr().out
    assert run(*arguments, "--extend", 1, "--precision", "64-true") == 4
    assert run(*arguments, "--seeds", 1) == 4
    assert "got one with training.steps = 6, not 3" in capsys.readouterr().err


def test_an_edited_recipe_is_taken_on_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("train", "quickstart", "-o", tmp_path / "runs", "-q", *QUICK) == 0
    (folder,) = find_runs(tmp_path)
    (folder / "result.json").unlink()
    path = folder / "recipe.toml"
    path.write_text(path.read_text().replace("steps = 3", "steps = 4"))
    assert run("resume", folder, "-q") == 4
    assert "To continue with the change: cayley resume" in capsys.readouterr().err
    assert not read_runs([tmp_path])[0]
    assert run("resume", folder, "-q", "--continue-with") == 0
    (section,) = summarize(*read_runs([tmp_path])).sections
    assert "edited after step 3: training.steps = 4, not 3" in section.rows[0].changes


def test_a_stranger_is_trusted_when_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "someones.py").write_text("from cayley.lab.tasks.synthetic import Adding as Own\n")
    arguments = ("train", "quickstart", "--seeds", 1, "-o", tmp_path, *QUICK, "-q")
    own = ("--task", "someones:Own")
    assert run(*arguments, *own) == 0
    # asked for by name it needs no trust
    assert run(*arguments, *own) == 0
    (folder,) = find_runs(tmp_path)
    for command in ("evaluate", "resume"):
        assert run(command, folder) == 4
        assert "add --trust" in capsys.readouterr().err
        assert run(command, folder, "--trust") == 0


def test_edited_code_is_another_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "edited_task.py"
    path.write_text("from cayley.lab.tasks.synthetic import Adding as Own\n")
    arguments = ("train", "quickstart", "--task", "edited_task:Own", "-o", tmp_path, *QUICK, "-q")
    assert run(*arguments, "--seeds", 1) == 0
    path.write_text(path.read_text() + "# edited\n")
    monkeypatch.delitem(sys.modules, "edited_task")
    # the seed of the old code is not taken for one of the new
    assert run(*arguments, "--seeds", 3) == 4
    assert "got one with code of edited_task" in capsys.readouterr().err
    (section,) = summarize(*read_runs([tmp_path])).sections
    assert sorted(len(row.runs) for row in section.rows) == [1, 2]
    for row in section.rows:
        (code,) = {run.description.code["edited_task"] for run in row.runs}
        assert f"code of edited_task {code[:8]}" in row.label


@pytest.mark.parametrize("name", ["run.json", "result.json"])
@pytest.mark.parametrize("text", ["{}", "[]", "null", "1", "", 100_000 * "["])
def test_what_is_no_description_and_no_result_is_said(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = find_recipe("quickstart").recipe()
    folder = tmp_path / "run"
    with RunFolder(folder) as writer:
        writer.begin(make_description(settings=write_recipe(recipe)))
    (folder / name).write_text(text)
    assert run("resume", folder, "-q") == 4
    assert capsys.readouterr().err.startswith("cayley: ")
    assert run("report", tmp_path, "-o", tmp_path / "report.html") == 0
    assert run("archive", tmp_path, "-o", tmp_path / "archive") in (0, 4)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["train", "quikstart"], 2, "did you mean quickstart?"),
        (["train", "quickstart", "--set", "model.hiden=3"], 2, "did you mean model.hidden"),
        (["train", "quickstart", "--task", "mnist"], 1, "give one with Source(folder) or"),
        (["train", "quickstart", "--task", "words", "--data", "my.txt"], 1, "task.corpus=own"),
        (["train", "quickstart", "--variant", "code"], 2, "expected a variant of"),
        (["train", "quickstart", "--set", "optim.lr=-1"], 2, "optim.lr: expected a number of at"),
        (["train", "quickstart", "--set", "task.train=0"], 2, "expected examples to train on"),
        (["train", "quickstart", "--task", "os"], 2, "task: expected a task of adding"),
        (["train", "quickstart", "--task", "os:Foo"], 2, "expected Foo in os to be a subclass"),
        (["train", "quickstart", "--task", "nobody:Foo"], 2, "expected a module that Python"),
        (["train", "quickstart", "--set", "model.name=os:Foo"], 2, "model.name: expected os:Foo"),
        (["train", "quickstart", "--seed", "4294967294", "--seeds", "3"], 2, "the last seed"),
        (["train", "quickstart", "--set", "variant=code"], 2, "--variant"),
        (["resume", "nowhere"], 4, "expected a run in nowhere"),
        (["evaluate", "nowhere"], 4, "expected a run in nowhere"),
    ],
)
def test_errors_have_codes(
    arguments: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == code
    # the first line says what begins, the last one what is wrong with it
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("cayley: ")
    assert message in last
    assert not list(tmp_path.rglob("run.json"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "arguments are required: COMMAND"),
        (["trian"], "choose from"),
        (["train", "quickstart", "--seeds", "0"], "expected an integer of at least 1, got 0"),
        (["train", "quickstart", "--device", "gpu"], "expected auto, cpu, cuda or cuda:1, got"),
        (["resume", "runs", "--device", "cuda:x"], "expected auto, cpu, cuda or cuda:1, got"),
        (["train", "quickstart", "--precision", "16"], "choose from"),
        (["train", "quickstart", "--seeds", "2.5"], "expected an integer of at least 1, got 2.5"),
        (["train", "quickstart", "--threads", "-2"], "expected an integer of at least 0, got -2"),
        (["train", "quickstart", "--checkpoint-every", "1m"], "expected 0 seconds or more, got 1m"),
        (["reproduce", "all", "--gpus-per-run", "half"], "expected 0.25, 1 or 2, or the like"),
        (
            ["train", "quickstart", "--checkpoint-every", "nan"],
            "expected 0 seconds or more, got nan",
        ),
        (["resume", "runs", "--checkpoint-every", "-1"], "expected 0 seconds or more, got -1"),
    ],
)
def test_wrong_arguments_are_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run(*arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run("--version")
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"cayley {cayley.__version__}\n"


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed"])
def test_precision_is_that_of_the_run(
    precision: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("train", "quickstart", "-q", "-o", tmp_path, "--precision", precision, *QUICK) == 0
    assert capsys.readouterr() == ("", "")
    (folder,) = find_runs(tmp_path)
    assert json.loads((folder / "run.json").read_text())["machine"]["precision"] == precision
    dtype = torch.float64 if precision == "64-true" else torch.float32
    weights = load_tensors(folder, "checkpoint.pt")["learner"]["model"].values()
    assert {weight.dtype for weight in weights} == {dtype}
    # the precision of an evaluation is that of the run too
    result = json.loads((folder / "result.json").read_text())
    assert run("evaluate", folder, "--split", "valid", "--device", "cpu", "--json") == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    assert scores == result["selected"]["valid"]["scores"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "quickstart", "-o", tmp_path, *QUICK, "--device", "cuda") == 1
    assert "cayley: expected a GPU for the device cuda, got none" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.filterwarnings("ignore:a recurrence runs as a loop")  # in double precision
def test_a_run_on_the_gpu_is_evaluated_anywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (*QUICK, "--device", "cuda:0", "--precision", "64-true")
    assert run("train", "quickstart", "-q", "-o", tmp_path, *options) == 0
    (folder,) = find_runs(tmp_path)
    found = json.loads((folder / "run.json").read_text())["machine"]
    assert found["accelerator"] == "cuda:0"
    scores = []
    for device in ((), ("--device", "cpu"), ("--device", "cuda")):
        assert run("evaluate", folder, "--json", *device) == 0
        scores.append(json.loads(capsys.readouterr().out)["scores"]["mse"])
    assert scores[1] == pytest.approx(scores[0], rel=1e-9)
    assert scores[2] == scores[0]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize(
    ("words", "unbuffered"),
    # argparse hides errors of an output that has no buffer
    [("show quickstart", ""), ("show quickstart", "1"), ("list", ""), ("list --help", "")],
)
def test_an_output_on_a_full_disk_is_a_sentence(words: str, unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "cayley", *words.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        )
    said = "could not write the output: No space left on device: make room, or write elsewhere"
    assert (done.returncode, done.stderr) == (4, f"cayley: {said}\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize(("words", "code"), [("show quickstart", 4), ("show quikstart", 2)])
def test_if_no_sentence_can_be_written_the_exit_code_is_the_same(words: str, code: int) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "cayley", *words.split()]
        done = subprocess.run(command, stdout=full, stderr=full)
    assert done.returncode == code


@pytest.mark.parametrize(
    ("words", "code"),
    # a run is not done
    [(["show", "quickstart"], 0), (["train", "quickstart", "--json", *QUICK], 141)],
)
def test_a_reader_that_has_seen_enough_is_no_failure(
    words: list[str], code: int, tmp_path: Path
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "cayley", *words],
            cwd=tmp_path,
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "", "PYTHONPATH": str(ROOT)},
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (code, "")


def test_a_package_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "tomli_w", None)
    assert run("train", "quickstart", "-o", tmp_path, *QUICK) == 1
    assert "pip install 'cayley[lab]'" in capsys.readouterr().err


def test_a_package_that_the_users_own_code_imports_is_not_cayleys(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "my_needy_task.py").write_text("import package_of_nobody\nclass Mine: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert run("train", "quickstart", "--task", "my_needy_task:Mine", "-o", tmp_path, *QUICK) == 1
    err = capsys.readouterr().err
    assert "expected the module package_of_nobody, got none" in err
    assert str(tmp_path / "my_needy_task.py") in err
    assert "cayley[" not in err


@pytest.mark.parametrize(
    "command",
    [
        "",
        "list",
        "show",
        "train",
        "reproduce",
        "resume",
        "evaluate",
        "report",
        "completion",
        "status",
        "new",
        "archive",
        "sweep",
    ],
)
def test_every_command_helps(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run(*filter(None, [command]), "--help")
    assert caught.value.code == 0
    assert "exit codes:" in capsys.readouterr().out


def test_help_and_lists_import_no_engine() -> None:
    """They take some 0.2 s, of which nothing may be for what only training needs."""
    script = (
        "import sys; sys.argv[0] = 'cayley'\n"
        "from cayley import cli\n"
        "commands = (['--help'], ['train', '--help'], ['reproduce', '--help'],\n"
        "  ['list'], ['list', 'pmnist'],\n"
        "  ['show', 'quickstart', '--set', 'model.hidden=3'], ['completion', 'bash'],\n"
        "  ['sweep', '--list'])\n"
        "for command in commands:\n"
        "  try: cli.main(command)\n"
        "  except SystemExit: pass\n"
        "slow = {'torch', 'numpy', 'rich', 'torch_geometric', 'optuna', 'ray'}\n"
        "assert not slow & set(sys.modules), slow & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_is_a_script(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("mine.toml", "mine.txt"):
        (tmp_path / name).touch()
    assert run("completion", shell) == 0
    script = capsys.readouterr().out
    for words in ("reproduce", "--checkpoint-every", *tables()):
        assert words in script
    if shell == "bash":
        for typed, found in (
            ("quickstart --set model.hid", "model.hidden="),
            ("quicks", "quickstart"),
            # a recipe of one's own
            ("mine.t", "mine.toml"),
        ):
            words = f"cayley train {typed}".split()
            ask = (
                f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; compopt() {{ :; }}\n"
            )
            ask += "_cayley; echo ${COMPREPLY[@]}"
            done = subprocess.run(
                ["bash", "-c", f"{script}\n{ask}"],
                capture_output=True,
                text=True,
                check=True,
                cwd=tmp_path,
            )
            assert found in done.stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_command_with_a_checkpoint(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    settings = ["training.steps=100000", "task.T=10", "model.hidden=4", "training.log=1"]
    command = ["train", "quickstart", "-o", str(tmp_path / "runs")]
    command += ["--threads", "1", "--device", "cpu", "--json", "--set", *settings]
    process = start(tmp_path, __file__, "run", *command)
    while '"kind": "train"' not in (tmp_path / "out").read_text():
        assert process.is_alive(), (tmp_path / "err").read_text()
        time.sleep(0.05)
    assert process.pid is not None
    os.kill(process.pid, number)
    if number == signal.SIGTERM:
        # as timeout does, once to the process and once to its group
        os.kill(process.pid, number)
    process.join()
    err = (tmp_path / "err").read_text()
    assert process.exitcode == code
    assert "continue with: cayley resume" in err
    (folder,) = find_runs(tmp_path / "runs")
    step = load_tensors(folder, "checkpoint.pt")["progress"]["step"]
    assert f"stopped after step {step};" in err
    assert step > 0


def test_a_task_and_a_text_of_the_users_own(tmp_path: Path) -> None:
    own = ("--task", "cayley.lab.tasks.synthetic:Adding", "--set", "task.T=8")
    assert run("train", "quickstart", "-o", tmp_path / "a", "-q", *QUICK, *own) == 0
    (tmp_path / "text.txt").write_text("In Ulm, um Ulm, und um Ulm herum. " * 20)
    own = ("--task", "characters", "--data", tmp_path / "text.txt", "--set", "task.corpus=own")
    settings = (*QUICK[1:], "training.batch=4", "evaluation.batch=0")
    assert run("train", "quickstart", "-o", tmp_path / "b", "-q", *settings, *own) == 0
    (folder,) = find_runs(tmp_path / "b")
    description = json.loads((folder / "run.json").read_text())
    assert description["metric"]["name"] == "bpc"
    assert description["data"]["folder"] == str(tmp_path / "text.txt")
    (tmp_path / "text.txt").rename(tmp_path / "moved.txt")
    assert run("evaluate", folder, "--data", tmp_path / "moved.txt") == 0


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("show quickstart", "stopped at once"),
        ("study cost-order", "stopped at once; the same command continues"),
        ("reproduce --all", "stopped at once; the same command continues"),
        (
            "train quickstart",
            "stopped at once; cayley resume continues a run that has begun from its last "
            "checkpoint",
        ),
    ],
)
def test_a_command_that_is_stopped_says_how_to_go_on(
    command: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stopped(options: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.commands, command.split()[0], stopped)
    assert run(*command.split()) == 130
    assert capsys.readouterr().err == f"cayley: {words}\n"


def test_files_of_a_run_without_its_description_are_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("train", "quickstart", "-o", tmp_path, "-q", *QUICK) == 0
    (folder,) = find_runs(tmp_path)
    (folder / "run.json").unlink()
    for name in ("result.json", "checkpoint.pt"):
        before = (folder / name).read_bytes()
        assert run("train", "quickstart", "-o", tmp_path, "-q", *QUICK) == 4
        assert f"with {name} of a run whose run.json is gone" in capsys.readouterr().err
        assert (folder / name).read_bytes() == before
        (folder / name).unlink()
    assert run("train", "quickstart", "-o", tmp_path, "-q", *QUICK) == 0


def test_a_finished_run_with_a_damaged_checkpoint_is_trained_once_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("train", "quickstart", "-o", tmp_path, "-q", *QUICK) == 0
    (folder,) = find_runs(tmp_path)
    with (folder / "checkpoint.pt").open("ab") as file:
        file.write(b"x")
    assert run("resume", folder, "--extend", 1) == 4
    said = capsys.readouterr().err
    assert "delete the folder, and train once more" in said
    assert "starts over" not in said


def test_an_empty_recipe_has_no_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.toml"
    path.touch()
    assert run("train", path, "-o", tmp_path / "runs") == 2
    assert "missing key name" in capsys.readouterr().err


def test_reproduce_says_what_it_got(capsys: pytest.CaptureFixture[str]) -> None:
    for words, got in (((), "neither"), (("--all", "scornn2018-figure-1"), "both")):
        assert run("reproduce", *words, "--dry-run") == 2
        assert f"or --all, got {got}" in capsys.readouterr().err


class NoSize(torch.nn.Module):
    """A model without ``output_size``."""

    def __init__(self, input_size: int, hidden_size: int, num_layers: int) -> None:
        super().__init__()


def test_a_model_without_a_size_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nosize", SimpleNamespace(NoSize=NoSize))
    own = ["model.name=nosize:NoSize", "training.steps=2"]
    assert run("train", "quickstart", "-o", tmp_path, "--tiny", "--set", *own) == 2
    assert "expected NoSize to have output_size" in capsys.readouterr().err
    assert not find_runs(tmp_path)
