"""Train once undisturbed and once killed again and again; say whether anything differs.

Kills go by what the run does, not by the clock: a loaded machine changes nothing.

A process of its own, with one thread: it forks, which a test process with threads must not.
"""

import json
import os
import random
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
import torch
from lab.looking import look_once

from cayley.lab.models import build_model
from cayley.lab.recipes.schema import read_recipe
from cayley.lab.runs import load_tensors, machine, read_metrics
from cayley.lab.runs.machine import Machine
from cayley.lab.training import Quiet, RunSettings, build_task, resume, setup, train

SETTINGS = RunSettings(Machine("cpu", threads=1), tiny=True, checkpoint_seconds=0.0)
# what differs between two runs of the same numbers
OWN = {"seconds", "evaluation_seconds", "seconds_per_epoch", "finished", "time", "metrics", "seal"}


def numbers(folder: Path) -> dict[str, Any]:
    """Everything that a run leaves behind, but for times and events."""
    result = json.loads((folder / "result.json").read_text())
    learner = load_tensors(folder, "checkpoint.pt")["learner"]
    return {
        "result": {key: value for key, value in result.items() if key not in OWN},
        "metrics": [
            {key: value for key, value in record.items() if key not in OWN}
            for record in read_metrics(folder)
            if record["kind"] != "event"
        ],
        "weights": [learner["model"], learner["optimizer"], learner["bnp"], learner["random"]],
        "best": load_tensors(folder, "best-valid.pt"),
    }


def equal(a: Any, b: Any) -> bool:
    """Whether two nests of dictionaries, lists and tensors are the same, bit for bit."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


class Moments(Quiet):
    """Counts the steps of a run and what it does to its files, and dies at one of these.

    Arguments:
        last: Which one; None for never.
    """

    CALLS = ("write", "fsync", "replace", "ftruncate", "unlink")

    def __init__(self, last: int | None = None) -> None:
        self.last = last
        self.count = 0

    def step(self, step: int, epoch: float) -> None:
        """One more."""
        self.count += 1
        if self.count == self.last:
            os.kill(os.getpid(), SIGKILL)

    def watch(self) -> None:
        """Count calls of the system too, before and after."""
        for name in self.CALLS:
            setattr(os, name, self.counting(getattr(os, name)))

    def counting(self, call: Any) -> Any:
        def counted(*arguments: Any, **more: Any) -> Any:
            self.step(0, 0.0)
            result = call(*arguments, **more)
            self.step(0, 0.0)
            return result

        return counted


def session(last: int | None, job: Any) -> int | None:
    """Do a job in a child that dies at a moment; None if it does, else how many there were."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        moments = Moments(last)
        write = os.write
        moments.watch()
        job(moments)
        write(send, str(moments.count).encode())
        os._exit(0)
    os.close(send)
    _, status = os.waitpid(child, 0)
    with open(receive) as answer:
        count = answer.read()
    assert status in (0, SIGKILL), f"the child failed: {status}"
    return int(count) if count else None


def main(folder: Path, contents: list[dict[str, Any]]) -> None:
    torch.set_num_threads(1)
    look_once(pytest.MonkeyPatch())
    # here, so that children need not look: what is remembered is theirs too
    SETTINGS.machine.engine()
    machine.find_cpu()
    setup.find_git_state()
    for content in contents:
        kill(folder / content["name"], content)


def kill(folder: Path, content: dict[str, Any]) -> None:
    recipe = read_recipe(content)
    # what these import, children need not
    build_model(recipe.model, build_task(recipe.task, SETTINGS))
    whole, run = folder / "whole", folder / "killed"
    total = session(None, lambda moments: train(recipe, whole, settings=SETTINGS, reporter=moments))
    assert total is not None
    kills = 0

    def go_on(moments: Moments) -> None:
        # at every step there is a checkpoint, or none but the first
        seconds = 1e9 if kills % 2 else 0.0
        if (run / "run.json").exists():
            resume(run, checkpoint_seconds=seconds, reporter=moments)
        else:
            train(recipe, run, settings=SETTINGS, reporter=moments)

    while session(random.randint(1, total // 3) if kills < 8 else None, go_on) is None:
        kills += 1
    resumed = sum(record["kind"] == "event" for record in read_metrics(run))
    same = equal(numbers(whole), numbers(run))
    report = {"name": recipe.name, "kills": kills, "resumed": resumed, "same": same}
    print(json.dumps(report), flush=True)
