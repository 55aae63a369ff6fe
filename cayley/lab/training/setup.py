"""What a run is made of: its task, its model and its description."""

import math
import re
import sys
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from inspect import signature
from pathlib import Path

import torch
from torch import nn

from cayley.lab.errors import RecipeError
from cayley.lab.models import build_model, count_parameters
from cayley.lab.processes import find_processes
from cayley.lab.recipes import Recipe, TaskSettings, write_recipe
from cayley.lab.runs import (
    FORMAT,
    DataPlace,
    Machine,
    MetricInfo,
    RunDescription,
    TrialInfo,
    describe_machine,
    find_code,
    find_git_state,
    find_versions,
)
from cayley.lab.tasks import SPLITS, Source, Split, Task, make_task, task_class
from cayley.lab.tasks.scoring import as_score
from cayley.lab.training.loop import Loop

__all__ = [
    "RunSettings",
    "build_task",
    "describe",
    "initial_model",
    "reads_files",
    "restore_settings",
]


@dataclass(frozen=True)
class RunSettings:
    """Settings of a run that are not in its recipe.

    Arguments:
        machine: Device, precision and threads.
        data: The user's folder or file of data.
        download: Whether missing files may be fetched.
        check: Whether files must have the published checksums.
        tiny: Whether a few made-up examples replace the data.
        overrides: The changes to the recipe, for the record.
        checkpoint_seconds: The time between two checkpoints.
        trial: The trial of a sweep, for the record.
    """

    machine: Machine = field(default_factory=Machine)
    data: Path | None = None
    download: bool = False
    check: bool = True
    tiny: bool = False
    overrides: tuple[str, ...] = ()
    checkpoint_seconds: float = 60.0
    trial: TrialInfo | None = None


def reads_files(task: TaskSettings) -> bool:
    """Whether a task reads data files."""
    try:
        return "source" in signature(task_class(task.name)).parameters
    except (TypeError, ValueError) as error:
        raise RecipeError(f"task: {error}") from error


def build_task(task: TaskSettings, settings: RunSettings) -> Task:
    """The task of a recipe, with the user's data."""
    place = {}
    if reads_files(task):
        place["source"] = Source(settings.data, settings.download, settings.check)
    try:
        made = make_task(task.name, **task.settings, **place)
    except RecipeError:
        # the error already names the setting
        raise
    except (TypeError, ValueError) as error:
        raise RecipeError(f"task: {error}") from error
    return made.tiny() if settings.tiny else made


def initial_model(recipe: Recipe, task: Task, seed: int, machine: Machine) -> nn.Module:
    """The model of a recipe, initialised with a seed; raise if its size is not the paper's."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(machine.dtype)
    try:
        torch.manual_seed(seed)
        model = build_model(recipe.model, task)
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


def describe(
    recipe: Recipe, loop: Loop, settings: RunSettings, together: int = 1
) -> RunDescription:
    """The content of ``run.json`` for a new run, of several that learn together."""
    task, learner = loop.task, loop.learner
    splits = [split for split in SPLITS if task.size(split)]
    metric = loop.selection.metric
    place = None if settings.data is None else str(settings.data.resolve())
    return RunDescription(
        format=FORMAT,
        id=uuid.uuid4().hex,
        recipe=recipe.name,
        table=recipe.table,
        variant=recipe.variant,
        seed=loop.seed,
        overrides=settings.overrides,
        tiny=settings.tiny,
        parameters=count_parameters(learner.model),
        parameters_stored=sum(p.numel() for p in learner.model.parameters()),
        metric=MetricInfo(metric, loop.selection.better),
        metrics=tuple(MetricInfo(metric.name, metric.better) for metric in task.metrics),
        baseline={
            split: _baseline(task, split, metric if split in loop.splits else "")
            for split in splits
        },
        baseline_rule=task.naive_rule,
        sizes={split: task.size(split) for split in splits},
        steps_per_epoch=loop.times.steps_per_epoch,
        steps=loop.times.steps,
        data=DataPlace(place, settings.download, settings.check),
        vocabulary=task.vocabulary_digest,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        command=tuple(map(_hide_password, sys.argv)),
        machine=describe_machine(
            settings.machine,
            loop.device,
            graph=learner.graphs is not None,
            no_graph=learner.no_graph,
        ),
        together=together,
        versions=find_versions(),
        git=find_git_state(),
        code=find_code(recipe),
        settings=write_recipe(recipe),
        trial=settings.trial,
    )


def _baseline(task: Task, split: Split, metric: str) -> dict[str, float]:
    """The scores of the naive predictor; raise unless all are finite.

    Arguments:
        task: The task.
        split: The split.
        metric: One that must be among them; empty for none.
    """
    scores = {name: as_score(name, value) for name, value in task.baseline(split).items()}
    wanted = {metric: math.nan} if metric else {}
    for name, value in (wanted | scores).items():
        if not math.isfinite(value):
            found = value if name in scores else "none"
            raise RecipeError(
                f"task: expected a finite {name} of the naive predictor on the split {split}, got "
                f"{found}: return one from baseline(), or leave that metric out"
            )
    return scores


def _hide_password(word: str) -> str:
    """A word of a command line without the password of an address: others read ``run.json``."""
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", word)


def restore_settings(
    description: RunDescription, device: str = "", data: Path | None = None
) -> RunSettings:
    """The settings of an existing run.

    Arguments:
        description: The description of the run.
        device: A different device; empty for the same.
        data: Where the data are now; None for the same place.
    """
    machine, place = description.machine, description.data
    accelerator, graph = machine.accelerator, machine.graph
    if find_processes().several:
        # each process has its own device, and steps are not graphs
        accelerator, graph = accelerator.partition(":")[0], False
    # graphs are kept for the sake of the same numbers, and there are none on a CPU
    graph = graph and device != "cpu"
    if data is None and place.folder is not None:
        data = Path(place.folder)
    return RunSettings(
        Machine(device or accelerator, machine.precision, machine.threads, graph),
        data=data,
        download=place.download,
        check=place.check,
        tiny=description.tiny,
        overrides=description.overrides,
    )
