import io
import json
import sys
from dataclasses import replace

import pytest
from lab.descriptions import CONTENT, make_description
from torch import nn

from cayley.lab.runs import MetricInfo, RunResult
from cayley.lab.training import reporters
from cayley.lab.training.reporters import JSON, Live, Plain, Quiet, choose_reporter

DESCRIPTION = make_description()
MODEL = nn.Linear(1, 1)
TRAIN = {"kind": "train", "step": 10, "epoch": 0.5, "loss": 0.123456}
EVAL = {
    "kind": "eval",
    "step": 20,
    "epoch": 1.0,
    "scores": {"valid": {"mse": 0.2, "x": 1.0}, "test": {"mse": 0.21, "x": 1.0}},
}
EVENT = {"kind": "event", "step": 20, "epoch": 1.0, "event": "resumed", "message": "from step 20"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_which_reporter_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(choose_reporter(quiet=True, as_json=False), Quiet)
    assert isinstance(choose_reporter(quiet=True, as_json=True), JSON)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert isinstance(choose_reporter(quiet=False, as_json=False), Plain)
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert isinstance(choose_reporter(quiet=False, as_json=False), Live)


def test_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Plain(seconds=1000)
    reporter.begin(DESCRIPTION, 7, MODEL)
    for record in (TRAIN, EVAL, EVENT):
        reporter.record(record)
    reporter.end(None)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert not out
    assert lines[0] == (
        "papers/row (code), seed 3: 1234 parameters, 100 steps, from step 7, begun on cpu, "
        "32-true, 2 threads"
    )
    assert lines[1] == "to beat: baseline 0.25 (always 1)"
    assert lines[2].startswith("step 20, epoch 1.00: valid mse 0.2, test mse 0.21  (")
    assert lines[3:] == ["step 20, epoch 1.00: resumed: from step 20"]


def test_training_is_told_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Plain(seconds=0)
    reporter.begin(DESCRIPTION, 0, MODEL)
    reporter.record(TRAIN)
    assert "step 10, epoch 0.50: loss 0.1235  (" in capsys.readouterr().err


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = JSON()
    reporter.begin(DESCRIPTION, 0, MODEL)
    reporter.record(EVAL)
    reporter.end(RunResult(status="done", step=1, epoch=1.0, seconds=2.0, selected={}))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["kind"] for line in lines] == ["run", "eval", "result"]
    assert lines[0] == {"kind": "run", "step": 0, **CONTENT}
    assert lines[1] == EVAL
    assert lines[2]["status"] == "done"


def test_a_bar_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    reporter = Live()
    reporter.begin(DESCRIPTION, 0, MODEL)
    for record in (TRAIN, EVAL):
        reporter.record(record)
    reporter.step(20, 1.0)
    reporter.progress.refresh()
    reporter.shown = 0.0
    reporter.evaluate("test", 4, 9)
    reporter.progress.refresh()
    reporter.end(None)
    text = terminal.getvalue()
    assert "evaluating test: 4 of 9 batches" in text
    assert "step 20, epoch 1.00: valid mse 0.2, test mse 0.21" in text
    assert "20/100" in text
    assert "loss 0.1235  valid mse 0.2  baseline 0.25" in text
    assert "left" in text


@pytest.mark.parametrize("name", ["error [/s]", "error [dB]", "error :x:"])
def test_a_bar_shows_brackets(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    reporter = Live()
    baseline = {"valid": {name: 0.25}}
    reporter.begin(
        replace(DESCRIPTION, metric=MetricInfo(name, "lower"), baseline=baseline), 0, MODEL
    )
    reporter.record(EVAL | {"scores": {"valid": {name: 0.2}}})
    reporter.step(20, 1.0)
    reporter.progress.refresh()
    reporter.end(None)
    text = terminal.getvalue()
    assert f"step 20, epoch 1.00: valid {name} 0.2" in text
    assert f"valid {name} 0.2  baseline 0.25" in text


def test_long_evaluations_are_told_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Plain(seconds=0)
    reporter.begin(DESCRIPTION, 0, MODEL)
    reporter.evaluate("valid", 3, 10)
    assert "evaluating valid: 3 of 10 batches\n" in capsys.readouterr().err
    reporter = Plain(seconds=1000)
    reporter.begin(DESCRIPTION, 0, MODEL)
    capsys.readouterr()
    reporter.evaluate("valid", 3, 10)
    assert capsys.readouterr() == ("", "")


def test_evaluation_is_not_in_the_rate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(reporters.time, "monotonic", lambda: now)
    reporter = Plain(seconds=0)
    reporter.begin(DESCRIPTION, 0, MODEL)
    now += 10
    reporter.evaluate("valid", 0, 1)
    now += 90
    reporter.record(EVAL)
    assert "(2/s, 0:" in capsys.readouterr().err
