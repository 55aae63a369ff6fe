"""Four workers of a study that are killed again and again; say what has become of its trials.

Kills go by what a worker does, not by the clock: a loaded machine changes nothing.

A process of its own, with one thread: it forks, which a test process with threads must not.
"""

import functools
import importlib.metadata
import json
import os
import random
import traceback
from pathlib import Path
from signal import SIGKILL
from typing import Any

import optuna
import torch

from cayley.lab.runs import Interrupts, Machine, read_metrics, read_result, read_run
from cayley.lab.sweeps import join, open_storage, read_space
from cayley.lab.sweeps.worker import FinishedTrial, work
from cayley.lab.training import Quiet, RunSettings, setup, train

SPACE = """
recipe = "quickstart"
metric = "valid_mse"
trials = 20
set = ["training.steps=8", "evaluation.every=4", "training.log=2"]
sampler = { name = "random", seed = 7 }

[parameters]
optim.lr = { low = 1e-4, high = 1e-1, log = true }
model.hidden = [6, 8]
optim.name = ["Adam", "SGD"]
optim.options.momentum = { low = 0.0, high = 0.9, when = { "optim.name" = "SGD" } }
"""
WORKERS, KILLS = 4, 16
# a worker has about so many moments
LONGEST = 160
SETTINGS = RunSettings(Machine("cpu", threads=1), tiny=True, checkpoint_seconds=0.0)


class Moments(Quiet):
    """Counts what a worker does to files and to the storage, and dies at one of these.

    Arguments:
        last: Which one; None for never.
    """

    FILES = ("write", "replace", "ftruncate", "open")
    STORAGE = (
        *("create_new_trial", "set_trial_param", "set_trial_state_values", "set_trial_user_attr"),
        *("set_trial_intermediate_value", "set_trial_system_attr", "set_study_user_attr"),
    )

    def __init__(self, last: int | None) -> None:
        self.last, self.count = last, 0

    def step(self, step: int, epoch: float) -> None:
        self.count += 1
        if self.count == self.last:
            os.kill(os.getpid(), SIGKILL)

    def watch(self, place: Any, names: tuple[str, ...]) -> None:
        for name in names:
            setattr(place, name, self.counting(getattr(place, name)))

    def counting(self, call: Any) -> Any:
        def counted(*arguments: Any, **more: Any) -> Any:
            self.step(0, 0.0)
            result = call(*arguments, **more)
            self.step(0, 0.0)
            return result

        return counted


def run_worker(folder: Path, url: str, last: int | None) -> None:
    log = os.open(folder / "told", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    write = os.write

    def tell(trial: FinishedTrial) -> None:
        write(log, f"{trial.number}\n".encode())

    moments = Moments(last)
    moments.watch(os, Moments.FILES)
    storage = open_storage(url)
    moments.watch(storage.optuna, Moments.STORAGE)
    sweep = join(read_space(SPACE, "killed"), storage, folder, direction="minimize", tiny=True)
    work(
        sweep,
        SETTINGS,
        interrupts=Interrupts(),
        tell=tell,
        reporter=lambda folder: moments,
        look_seconds=0.2,
    )


def start(folder: Path, url: str, last: int | None) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            run_worker(folder, url, last)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def describe(folder: Path, url: str) -> dict[str, Any]:
    """What a study and its runs are in the end."""
    study = optuna.load_study(study_name="killed", storage=open_storage(url).optuna)
    trials = study.get_trials()
    runs = [folder / "killed" / f"trial-{trial.number:04}" for trial in trials]
    infos = [read_run(run)[0].trial for run in runs]
    values = [read_result(run).selected["valid"].scores["mse"] for run in runs]
    resumed = [
        run for run in runs if any(one.get("event") == "resumed" for one in read_metrics(run))
    ]
    # each alone and undisturbed
    alone = [
        train(read_run(run)[1], folder / "alone" / run.name, settings=SETTINGS) for run in resumed
    ]
    told = [int(line) for line in (folder / "told").read_text().split()]
    return {
        "states": [trial.state.name for trial in trials],
        "numbers": [info.number for info in infos if info is not None],
        "same": [trial.value for trial in trials] == values,
        "as if undisturbed": [result.last for result in alone]
        == [read_result(run).last for run in resumed],
        "reported": [sorted(trial.intermediate_values) for trial in trials],
        "told": sorted(told),
        "resumed": len(resumed),
        "folders": len(list((folder / "killed").glob("trial-*"))),
        "different": len({json.dumps(trial.params) for trial in trials}),
    }


def main(folder: Path, url: str) -> None:
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # what takes long and is not tried here
    entry_points: Any = functools.cache(importlib.metadata.entry_points)
    importlib.metadata.entry_points = entry_points
    setup.find_git_state = lambda folder=None: None
    os.fsync = lambda fd: None
    # what these import or find out, children need not
    warm = folder / "warm"
    recipe = read_space(SPACE, "killed").base(tiny=True)
    train(recipe, warm, settings=SETTINGS)
    open_storage(f"sqlite:///{folder / 'warm.db'}").optuna.remove_session()
    kills = 0
    running = set()

    def fuse() -> int | None:
        return random.randint(1, LONGEST) if kills < KILLS else None

    for _ in range(WORKERS):
        running.add(start(folder, url, fuse()))
    try:
        while running:
            child, status = os.wait()
            running.remove(child)
            assert status in (0, SIGKILL), f"a worker failed: {status}"
            if status == SIGKILL:
                kills += 1
                running.add(start(folder, url, fuse()))
    finally:
        for child in running:
            os.kill(child, SIGKILL)
    print(json.dumps({"kills": kills, **describe(folder, url)}), flush=True)
