"""Start a run, resume one, and evaluate its weights."""

from dataclasses import replace
from pathlib import Path

from cayley.lab.errors import RecipeError, RunError
from cayley.lab.models.sequences import draws_randomly
from cayley.lab.processes import find_processes
from cayley.lab.recipes import Recipe, write_recipe
from cayley.lab.runs import (
    Interrupts,
    Mark,
    RunDescription,
    RunFolder,
    RunResult,
    SharedFolder,
    Weights,
    check_format,
    open_folder,
    read_edited_run,
    read_result,
    read_run,
)
from cayley.lab.tasks import Split, Task
from cayley.lab.training.changes import (
    change_description,
    check_code,
    check_edit,
    check_vocabulary,
    lengthen,
)
from cayley.lab.training.evaluation import audio_metrics, check_work, score_model
from cayley.lab.training.learner import Learner
from cayley.lab.training.loop import Loop
from cayley.lab.training.reporters import Quiet, Reporter
from cayley.lab.training.restoring import RestoredRun, check_trusted, restore_run
from cayley.lab.training.setup import (
    RunSettings,
    build_task,
    describe,
    initial_model,
    restore_settings,
)
from cayley.lab.training.shares import check_shares

__all__ = ["evaluate", "resume", "score_run", "train"]


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
        folder: The run folder; it must not contain a run.
        seed: The seed of the run; None for the recipe's.
        settings: Machine and data.
        reporter: Shows the progress; None to show nothing.
        interrupts: Signals that ask to stop.

    Returns:
        The numbers of the run, which are also in ``result.json``.

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
    # checked before the folder is made, so that a mistake leaves nothing behind
    model = initial_model(recipe, task, seed, settings.machine)
    check_work(recipe, task)
    check_shares(recipe, task, model, find_processes().count)
    learner = Learner(recipe, task, model, settings.machine, seed=seed)
    with open_folder(folder, settings.machine) as run:
        if run.has("run.json"):
            raise RunError(
                f"expected a folder without a run, got {folder}: continue with cayley resume "
                f"{folder}, or choose another --output"
            )
        loop = _loop(recipe, task, learner, run, seed, settings, reporter, interrupts)
        description = describe(recipe, loop, settings)
        run.begin(description)
        return _go(loop, description)


def resume(
    folder: Path,
    *,
    device: str = "",
    data: Path | None = None,
    reporter: Reporter | None = None,
    interrupts: Interrupts | None = None,
    checkpoint_seconds: float = 60.0,
    extend: int = 0,
    continue_with: bool = False,
    trust: bool = False,
) -> RunResult:
    """Continue a run where it stopped; if it is finished, only return its result.

    Arguments:
        folder: The run folder.
        device: A different device, which may change the last digits; empty for the same.
        data: Where the data are now; None for the same place.
        reporter: Shows the progress; None to show nothing.
        interrupts: Signals that ask to stop.
        checkpoint_seconds: The time between two checkpoints.
        extend: By how many steps (or epochs, if the recipe counts these) to make a finished run
            longer. Its numbers are then those of a run that was longer from the start, except that
            its former last evaluation is kept even if it is between two regular ones;
            ``run.json`` records that.
        continue_with: Whether to continue with a recipe, or with one's own task or model, that was
            edited after the start; ``run.json`` records the change.
        trust: Whether the recipe may name a module outside cayley, whose code then runs.

    Returns:
        The numbers of the run, which are also in ``result.json``.
    """
    if continue_with:
        description, before, recipe = read_edited_run(folder)
        check_edit(before, recipe)
    else:
        description, before = read_run(folder)
        recipe = before
    edited = write_recipe(recipe) != write_recipe(before)
    check_trusted(folder, recipe, trust)
    settings = replace(
        restore_settings(description, device, data), checkpoint_seconds=checkpoint_seconds
    )
    with open_folder(folder, settings.machine) as run:
        run.description = description
        finished = run.has("result.json")
        if finished:
            result = read_result(folder, description)
            if edited:
                raise RunError(
                    f"expected an unfinished run, got a finished one in {folder}: undo the change "
                    "to recipe.toml; to train for longer, use --extend"
                )
            if not extend:
                if reporter is not None:
                    reporter.found(description, result)
                return result
            recipe = lengthen(recipe, extend, result)
        else:
            check_format(folder / "run.json", description)
            if run.has("metrics.jsonl.gz"):
                raise RunError(
                    f"expected a run that can be continued, got an archive in {folder}, which has "
                    "no checkpoint: continue the run that it was made from, or train it again"
                )
        if extend and not finished:
            raise RunError(
                f"expected a finished run to extend, got an unfinished one in {folder}: first "
                f"continue it with cayley resume {folder}"
            )
        recoded = check_code(folder, description, recipe, accept=continue_with and not finished)
        task = build_task(recipe.task, settings)
        check_vocabulary(folder, description, task, settings.data)
        seed = description.seed
        model = initial_model(recipe, task, seed, settings.machine)
        check_work(recipe, task)
        check_shares(recipe, task, model, find_processes().count)
        learner = Learner(recipe, task, model, settings.machine, seed=seed)
        loop = _loop(recipe, task, learner, run, seed, settings, reporter, interrupts)
        if finished or run.has("checkpoint.pt"):
            try:
                loop.restore(edited=edited)
            except RunError as error:
                if not (edited or recoded):
                    raise
                raise RunError(
                    f"{error}. If the checkpoint does not fit what was edited, undo the change"
                ) from error
        else:
            # without a checkpoint the run starts over, and earlier records do not count
            run.rewind(Mark())
        if finished or edited or recoded:
            kind = "extended" if finished else "edited"
            description = change_description(description, before, loop, kind)
            run.change(description)
            change = description.changes[-1]
            words = "; ".join(filter(None, (*change.differences, change.note)))
            return _go(loop, description, kind, words)
        if not run.has("recipe.toml"):
            run.write("recipe.toml", description.settings.encode())
        return _go(loop, description)


def evaluate(
    folder: Path,
    split: Split,
    *,
    weights: Weights = "selected",
    device: str = "",
    data: Path | None = None,
    audio: bool = False,
    trust: bool = False,
) -> dict[str, float]:
    """Score the weights of a run, which need not be finished.

    Arguments:
        folder: The run folder.
        split: The split to score them on.
        weights: Which weights, see :func:`~cayley.lab.runs.weights.read_weights`.
        device: A different device than that of the run; empty for the same.
        data: Where the data are now; None for the same place.
        audio: Whether to score the sound of the predictions instead.
        trust: Whether the recipe may name a module outside cayley, whose code then runs.

    Returns:
        The value of each metric.
    """
    run = restore_run(folder, weights=weights, split=split, device=device, data=data, trust=trust)
    return score_run(run, split, audio=audio)


def score_run(run: RestoredRun, split: Split, *, audio: bool = False) -> dict[str, float]:
    """Score the weights of a run that is loaded.

    Arguments:
        run: The run, with its weights.
        split: The split to score them on.
        audio: Whether to score the sound of the predictions instead.

    Returns:
        The value of each metric.
    """
    if not run.task.size(split):
        raise RecipeError(
            f"expected examples in the split {split}, got none: choose another with --split"
        )
    engine = run.settings.machine.engine()
    return score_model(
        run.recipe,
        run.task,
        engine.setup_module(run.model),
        split,
        seed=run.description.seed,
        device=engine.device,
        dtype=run.settings.machine.dtype,
        metrics=audio_metrics(run.task) if audio else None,
    )


def _loop(
    recipe: Recipe,
    task: Task,
    learner: Learner,
    run: RunFolder | SharedFolder,
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


def _go(
    loop: Loop, description: RunDescription, event: str = "resumed", message: str = ""
) -> RunResult:
    step = loop.progress.step
    loop.reporter.begin(description, step, loop.learner.model)
    result = None
    try:
        processes = loop.agreement.processes
        if step or message:
            where = f", {processes.count} processes" if processes.several else ""
            loop.event(event, message or f"on {loop.device}{where}")
        if processes.several and draws_randomly(loop.learner.model):
            loop.event(
                "dropout",
                f"each of {processes.count} processes draws its own: the numbers are equivalent to "
                "those of one device, but not identical",
            )
        result = loop.train()
    finally:
        loop.reporter.end(result)
    return result
