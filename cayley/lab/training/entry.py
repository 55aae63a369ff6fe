"""Start a run, go on with one, and score what one has learnt."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from cayley.lab.errors import RecipeError, RunError
from cayley.lab.recipes import Recipe
from cayley.lab.runs import (
    Interrupts,
    RunDescription,
    RunFolder,
    RunResult,
    explain_damage,
    load_tensors,
    read_result,
    read_run,
)
from cayley.lab.tasks import Split, Task
from cayley.lab.training.evaluation import audio_metrics, check_work, score_model
from cayley.lab.training.learner import Learner
from cayley.lab.training.loop import Loop
from cayley.lab.training.reporters import Quiet, Reporter
from cayley.lab.training.setup import (
    RunSettings,
    build_task,
    describe,
    initial_model,
    restore_settings,
)

__all__ = ["Weights", "evaluate", "resume", "train"]

Weights = Literal["selected", "valid", "test", "last"]


def train(
    recipe: Recipe,
    folder: Path,
    *,
    seed: int | None = None,
    settings: RunSettings | None = None,
    reporter: Reporter | None = None,
    interrupts: Interrupts | None = None,
) -> RunResult:
    """Run a recipe from the start.

    Arguments:
        recipe: What to do.
        folder: Of the run; it must not hold one.
        seed: Of the run; None for the recipe's.
        settings: Machine and data.
        reporter: What shows the progress; None for nothing.
        interrupts: Signals that ask to stop.

    Returns:
        Its numbers, which are in ``result.json`` too.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from cayley.lab.recipes import find_recipe
        >>> recipe = find_recipe("quickstart").recipe(overrides=["training.steps=2"])
        >>> with TemporaryDirectory() as folder:
        ...     result = train(recipe, Path(folder, "run"), settings=RunSettings(tiny=True))
        >>> result.status, result.step
        ('done', 2)
    """
    settings = RunSettings() if settings is None else settings
    seed = recipe.seed if seed is None else seed
    task = build_task(recipe.task, settings)
    # before there is a folder: what cannot work leaves nothing behind
    model = initial_model(recipe, task, seed, settings.machine)
    check_work(recipe, task)
    learner = Learner(recipe, task, model, settings.machine.fabric())
    with RunFolder(folder) as run:
        if run.has("run.json"):
            raise RunError(
                f"expected a folder without a run, got {folder}: go on with cayley resume "
                f"{folder}, or choose another --output"
            )
        loop = _loop(recipe, task, learner, run, seed, settings, reporter, interrupts)
        description = describe(recipe, loop, settings)
        run.begin(recipe, description)
        return _go(loop, description)


def resume(
    folder: Path,
    *,
    device: str = "",
    data: Path | None = None,
    reporter: Reporter | None = None,
    interrupts: Interrupts | None = None,
    checkpoint_seconds: float = 60.0,
) -> RunResult:
    """Go on with a run where it was left; if it is finished, only give its result.

    Arguments:
        folder: Of the run.
        device: Another one than before, which may change last digits; empty for the same.
        data: Where the data are now; None for the same place.
        reporter: What shows the progress; None for nothing.
        interrupts: Signals that ask to stop.
        checkpoint_seconds: Between two checkpoints.

    Returns:
        Its numbers, which are in ``result.json`` too.
    """
    description, recipe = read_run(folder)
    settings = replace(
        restore_settings(description, device, data), checkpoint_seconds=checkpoint_seconds
    )
    with RunFolder(folder) as run:
        if run.has("result.json"):
            return read_result(folder)
        task = build_task(recipe.task, settings)
        seed = description.seed
        model = initial_model(recipe, task, seed, settings.machine)
        learner = Learner(recipe, task, model, settings.machine.fabric())
        loop = _loop(recipe, task, learner, run, seed, settings, reporter, interrupts)
        if run.has("checkpoint.pt"):
            loop.restore()
        else:
            # without it the run starts over, and what was recorded before does not count
            run.rewind(0)
        return _go(loop, description)


def evaluate(
    folder: Path,
    split: Split,
    *,
    weights: Weights = "selected",
    device: str = "",
    data: Path | None = None,
    audio: bool = False,
) -> dict[str, float]:
    """Score the weights of a run, which may still be going on.

    Arguments:
        folder: Of the run.
        split: What to score them on.
        weights: ``"selected"``, which give the run's numbers (where each split has its own choice
            and this one none, the best by ``"valid"``), the best by ``"valid"`` or ``"test"``, or
            the ``"last"`` that were saved.
        device: Another one than that of the run; empty for the same.
        data: Where the data are now; None for the same place.
        audio: Whether to score sound instead.

    Returns:
        The value of each metric.
    """
    description, recipe = read_run(folder)
    settings = restore_settings(description, device, data)
    task = build_task(recipe.task, settings)
    if not task.size(split):
        raise RecipeError(
            f"expected examples in the split {split}, got none: choose another with --split"
        )
    model = initial_model(recipe, task, description.seed, settings.machine)
    chosen: str = weights
    if weights == "selected":
        chosen = recipe.evaluation.select
    if chosen == "each":
        # earlier versions kept no best by train
        chosen = split if (folder / f"best-{split}.pt").exists() else "valid"
    name = "checkpoint.pt" if chosen == "last" else f"best-{chosen}.pt"
    with explain_damage(folder, name):
        state = load_tensors(folder, name)
        model.load_state_dict((state["learner"] if chosen == "last" else state)["model"])
    fabric = settings.machine.fabric()
    return score_model(
        recipe,
        task,
        fabric.setup_module(model),
        split,
        seed=description.seed,
        device=fabric.device,
        dtype=settings.machine.dtype,
        metrics=audio_metrics(task) if audio else None,
    )


def _loop(
    recipe: Recipe,
    task: Task,
    learner: Learner,
    run: RunFolder,
    seed: int,
    settings: RunSettings,
    reporter: Reporter | None,
    interrupts: Interrupts | None,
) -> Loop:
    return Loop(
        recipe,
        task,
        learner,
        run,
        Quiet() if reporter is None else reporter,
        seed=seed,
        interrupts=interrupts,
        checkpoint_seconds=settings.checkpoint_seconds,
    )


def _go(loop: Loop, description: RunDescription) -> RunResult:
    step = loop.progress.step
    loop.reporter.begin(description, step)
    result = None
    try:
        if step:
            loop.event("resumed", f"on {loop.device}")
        result = loop.train()
    finally:
        loop.reporter.end(result)
    return result
