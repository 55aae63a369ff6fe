"""A run that is loaded with its weights."""

import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from cayley.lab.errors import RunError
from cayley.lab.recipes import Recipe
from cayley.lab.runs import (
    RunDescription,
    Weights,
    compare_code,
    explain_damage,
    find_code,
    own_classes,
    read_run,
    read_weights,
)
from cayley.lab.tasks import Split, Task
from cayley.lab.training.changes import check_vocabulary
from cayley.lab.training.setup import RunSettings, build_task, initial_model, restore_settings

__all__ = ["RestoredRun", "check_trusted", "load_model", "restore_run"]


@dataclass(frozen=True)
class RestoredRun:
    """A run with its trained model.

    Attributes:
        folder: The run folder.
        description, recipe: The description and the recipe of the run.
        settings: Machine and data.
        task: The task that it was trained on.
        model: The model with its weights, on the CPU.
        step: The step after which the weights were saved.
        weights: Which weights they are, in words.
    """

    folder: Path
    description: RunDescription
    recipe: Recipe
    settings: RunSettings
    task: Task
    model: nn.Module
    step: int
    weights: str


def restore_run(
    folder: Path,
    *,
    weights: Weights = "selected",
    split: Split = "test",
    device: str = "",
    data: Path | None = None,
    trust: bool = False,
) -> RestoredRun:
    """Load a run, which need not be finished, with its weights.

    If one's own task or model was edited since, a warning says so.

    Arguments:
        folder: The run folder.
        weights: Which weights, see :func:`~cayley.lab.runs.weights.read_weights`.
        split: The split that they are to be scored on.
        device: A different device than that of the run; empty for the same.
        data: Where the data are now; None for the same place.
        trust: Whether the recipe may name a module outside cayley, whose code then runs.
    """
    description, recipe = read_run(folder)
    check_trusted(folder, recipe, trust)
    if edited := compare_code(description.code, find_code(recipe)):
        warnings.warn(
            f"the run in {folder} was trained with {'; '.join(edited)}, as it is now: what is "
            "computed here may not be what the run computed",
            stacklevel=3,
        )
    settings = restore_settings(description, device, data)
    task = build_task(recipe.task, settings)
    check_vocabulary(folder, description, task, settings.data)
    model = initial_model(recipe, task, description.seed, settings.machine)
    saved = read_weights(folder, description, recipe, weights, split)
    with explain_damage(folder, "its weights"):
        model.load_state_dict(saved.tensors)
    return RestoredRun(folder, description, recipe, settings, task, model, saved.step, saved.words)


def load_model(folder: Path | str, *, trust: bool = False) -> nn.Module:
    """The trained network of a run, or of an archive with weights, on the CPU, for evaluation.

    Random numbers that are drawn afterwards do not depend on it.

    Arguments:
        folder: The run folder.
        trust: Whether the recipe may name a module outside cayley, whose code then runs.
    """
    # to ask for the state of a GPU would start CUDA
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices):
        return restore_run(Path(folder), device="cpu", trust=trust).model.eval()


def check_trusted(folder: Path, recipe: Recipe, trust: bool = False) -> None:
    """Raise if a run's recipe names a module outside cayley, unless it is trusted.

    Arguments:
        folder: The run folder.
        recipe: The recipe of the run.
        trust: Whether the recipe may name such a module.
    """
    for key, (name, module) in own_classes(recipe).items():
        if not trust:
            raise RunError(
                f"expected a recipe in {folder} that names classes of cayley, got {key} = "
                f"{name!r}, which would run the code of the module {module}: if you trust it, "
                "add --trust"
            )
