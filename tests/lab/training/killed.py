"""Train once undisturbed and once killed again and again; say whether anything differs.

A process of its own, with one thread: it forks, which a test process with threads must not.
"""

import json
import os
import random
import sys
import time
from pathlib import Path
from signal import SIGKILL
from typing import Any

import lightning_fabric  # noqa: F401  here, so that children need not import it
import torch

from cayley.lab.recipes.schema import read_recipe
from cayley.lab.runs import load_tensors, read_metrics
from cayley.lab.runs.machine import Machine
from cayley.lab.training import RunSettings, build_task, resume, train

SETTINGS = RunSettings(Machine("cpu", threads=1), tiny=True, checkpoint_seconds=0.02)
TIMES = {"seconds", "evaluation_seconds", "seconds_per_epoch", "finished", "time"}


def numbers(folder: Path) -> dict[str, Any]:
    """Everything that a run leaves behind, but for times and events."""
    result = json.loads((folder / "result.json").read_text())
    learner = load_tensors(folder, "checkpoint.pt")["learner"]
    return {
        "result": {key: value for key, value in result.items() if key not in TIMES},
        "metrics": [
            {key: value for key, value in record.items() if key not in TIMES}
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


def killed(seconds: float, job: Any) -> bool:
    """Do a job in a child; kill it after some time, unless it is done."""
    child = os.fork()
    if child == 0:
        job()
        os._exit(0)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert status == 0, f"the child failed: {status}"
            return False
        time.sleep(0.001)
    os.kill(child, SIGKILL)
    os.waitpid(child, 0)
    return True


def main(folder: Path, content: dict[str, Any]) -> None:
    recipe = read_recipe(content)
    build_task(recipe.task, SETTINGS)
    began = time.monotonic()
    killed(1e9, lambda: train(recipe, folder / "whole", settings=SETTINGS))
    whole = time.monotonic() - began
    kills = 0
    run = folder / "killed"

    def go_on() -> None:
        if (run / "run.json").exists():
            resume(run, checkpoint_seconds=SETTINGS.checkpoint_seconds)
        else:
            train(recipe, run, settings=SETTINGS)

    while killed(random.uniform(0.05, 0.5) * whole if kills < 8 else 1e9, go_on):
        kills += 1
    resumed = sum(record["kind"] == "event" for record in read_metrics(run))
    same = equal(numbers(folder / "whole"), numbers(run))
    report = {"name": recipe.name, "kills": kills, "resumed": resumed, "same": same}
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for content in json.loads(sys.argv[2]):
        main(Path(sys.argv[1], content["name"]), content)
