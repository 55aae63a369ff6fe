"""What a run is made of: its task, its model, its folder and its description."""

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cayley.lab.data import Source
from cayley.lab.errors import RecipeError
from cayley.lab.loop import Loop
from cayley.lab.machine import Machine, environment
from cayley.lab.models import build, count_parameters
from cayley.lab.schema import Recipe, TaskSettings
from cayley.lab.tasks import SPLITS, Task, make, task_class

__all__ = [
    "Settings",
    "build_model",
    "build_task",
    "describe",
    "reads_files",
    "recall",
    "run_folder",
]


@dataclass(frozen=True)
class Settings:
    """How to run a recipe, apart from what the recipe says.

    Arguments:
        machine: Device, precision and threads.
        data: The user's folder or file of data.
        download: Whether missing files may be fetched.
        check: Whether files must have the published checksums.
        tiny: Whether a few made-up examples stand for the data.
        overrides: What was changed in the recipe, for the record.
        checkpoint_seconds: Between two checkpoints.
    """

    machine: Machine = field(default_factory=Machine)
    data: Path | None = None
    download: bool = False
    check: bool = True
    tiny: bool = False
    overrides: tuple[str, ...] = ()
    checkpoint_seconds: float = 60.0


def run_folder(output: Path, recipe: Recipe, seed: int, overrides: Sequence[str] = ()) -> Path:
    """Where a run belongs: recipe, variant and seed, and a digest of what was overridden.

    Example:
        >>> from cayley.lab.recipes import find
        >>> recipe = find("quickstart").recipe()
        >>> run_folder(Path("runs"), recipe, 1).as_posix()
        'runs/quickstart/paper-seed1'
        >>> run_folder(Path("runs"), recipe, 1, ["model.hidden=64"]).as_posix()
        'runs/quickstart/paper-seed1-f12df79b'
    """
    name = f"{recipe.variant}-seed{seed}"
    if overrides:
        name += "-" + hashlib.sha256("\n".join(overrides).encode()).hexdigest()[:8]
    return output / recipe.name / name


def reads_files(task: TaskSettings) -> bool:
    """Whether a task takes the user's data."""
    try:
        return "source" in signature(task_class(task.name)).parameters
    except (TypeError, ValueError) as error:
        raise RecipeError(f"task: {error}") from error


def build_task(task: TaskSettings, settings: Settings) -> Task:
    """The task of a recipe, with the user's data."""
    place = {}
    if reads_files(task):
        place["source"] = Source(settings.data, settings.download, settings.check)
    try:
        made = make(task.name, **task.settings, **place)
    except (TypeError, ValueError) as error:
        raise RecipeError(f"task: {error}") from error
    return made.tiny() if settings.tiny else made


def build_model(recipe: Recipe, task: Task, seed: int, machine: Machine) -> nn.Module:
    """The model of a recipe, drawn by a seed; as large as the paper says, if that is known."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(machine.dtype)
    try:
        torch.manual_seed(seed)
        model = build(recipe.model, task)
    except (TypeError, ValueError) as error:
        raise RecipeError(f"{recipe.name}: {error}") from error
    finally:
        torch.set_default_dtype(before)
    count = count_parameters(model)
    if recipe.parameters and count != recipe.parameters:
        raise RecipeError(
            f"{recipe.name}: expected a model of {recipe.parameters} parameters, got {count}: "
            "change the model, or parameters"
        )
    return model


def describe(recipe: Recipe, loop: Loop, settings: Settings) -> dict[str, Any]:
    """The content of ``run.json``."""
    task, model = loop.task, loop.learner.model
    splits = [split for split in SPLITS if task.size(split)]
    metrics = [{"name": metric.name, "better": metric.better} for metric in task.metrics]
    deciding = {"name": loop.selection.metric, "better": loop.selection.better}
    return {
        "format": 1,
        "recipe": recipe.name,
        "table": recipe.table,
        "variant": recipe.variant,
        "seed": loop.seed,
        "overrides": list(settings.overrides),
        "tiny": settings.tiny,
        "parameters": count_parameters(model),
        "parameters_stored": sum(p.numel() for p in model.parameters()),
        "metric": deciding,
        "metrics": metrics,
        "baseline": {split: task.baseline(split) for split in splits},
        "baseline_rule": task.naive_rule,
        "sizes": {split: task.size(split) for split in splits},
        "steps_per_epoch": loop.times.steps_per_epoch,
        "steps": loop.times.steps,
        "data": {
            "folder": None if settings.data is None else str(settings.data.resolve()),
            "download": settings.download,
            "check": settings.check,
        },
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        **environment(settings.machine, loop.device),
    }


def recall(description: dict[str, Any], device: str, data: Path | None) -> Settings:
    """The settings of a run, from its description."""
    machine, place = description["machine"], description["data"]
    if data is None and place["folder"] is not None:
        data = Path(place["folder"])
    return Settings(
        Machine(device or machine["accelerator"], machine["precision"], machine["threads"]),
        data=data,
        download=place["download"],
        check=place["check"],
        tiny=description["tiny"],
        overrides=tuple(description["overrides"]),
    )
