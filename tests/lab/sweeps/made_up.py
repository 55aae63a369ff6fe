"""Studies of a space that is quickly searched."""

from pathlib import Path
from typing import Any

from cayley.lab.runs import Machine
from cayley.lab.sweeps import Outcome, Space, Sweep, join, open_storage, read_space
from cayley.lab.training import RunSettings

__all__ = ["SETTINGS", "TEXT", "begin", "finish", "space"]

TEXT = """
recipe = "quickstart"
metric = "valid_mse"
trials = 4
set = ["training.steps=4", "evaluation.every=2", "model.hidden=6"]
sampler = { name = "random", seed = 3 }
[parameters]
optim.lr = { low = 1e-4, high = 1e-1, log = true }
model.output_init = ["glorot", 0.1]
"""
SETTINGS = RunSettings(Machine("cpu", threads=1), tiny=True)


def space(text: str = TEXT, **changes: str) -> Space:
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return read_space(text, "mine")


def begin(folder: Path, found: Space | None = None, url: str = "", **more: Any) -> Sweep:
    storage = open_storage(url or f"journal://{folder / 'sweeps.journal'}")
    return join(found or space(), storage, folder, direction="minimize", tiny=True, **more)


def finish(sweep: Sweep, value: float = 1.0) -> int:
    task, _ = sweep.claim()
    assert task is not None
    with task.claim:
        assert sweep.finish(task, Outcome("complete", value))
    return task.number
