"""Changes to a run after its start: a longer one, edited settings, edited code, or other text."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from cayley.lab.errors import RunError
from cayley.lab.recipes import Recipe, edits, flatten, write_recipe
from cayley.lab.runs import RecipeChange, RunDescription, RunResult, compare_code, find_code
from cayley.lab.tasks import Task
from cayley.lab.training.loop import Loop

__all__ = ["change_description", "check_code", "check_edit", "check_vocabulary", "lengthen"]

# settings with which earlier checkpoints and scores would not be compatible
FIXED = (
    "task",
    "optim.name",
    "optim.recurrent",
    "optim.phases",
    "training.batch",
    "evaluation.splits",
    "evaluation.select",
    "evaluation.metric",
)


def lengthen(recipe: Recipe, more: int, result: RunResult) -> Recipe:
    """The recipe of a longer run.

    Arguments:
        recipe: The recipe of a finished run.
        more: The number of additional steps, or of epochs if the recipe counts epochs.
        result: The result of that run.
    """
    if result.status != "done":
        raise RunError(
            f"expected a run that was trained to its end, got one that {result.status}: a "
            "longer one would stop at the same step, so there is nothing to extend"
        )
    if recipe.optim.schedule.name == "OneCycleLR":
        raise RunError(
            "expected a schedule that can continue, got OneCycleLR, which ends with the run: train "
            "a longer run from the start"
        )
    length = "steps" if recipe.training.steps else "epochs"
    longer = {length: getattr(recipe.training, length) + more}
    return replace(recipe, training=replace(recipe.training, **longer))


def check_edit(recipe: Recipe, edited: Recipe) -> None:
    """Raise unless a run can continue with an edited recipe."""
    ours, theirs = flatten(edited), flatten(recipe)
    changed = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
    wrong = [
        key for key in changed if any(key == one or key.startswith(f"{one}.") for one in FIXED)
    ]
    # the seed is that of run.json, so that another one would have no effect
    own = ("name", "table", "variant", "seed")
    wrong += [key for key in own if getattr(edited, key) != getattr(recipe, key)]
    if wrong:
        raise RunError(
            f"expected changes with which a run can continue, got one of {', '.join(wrong)}, which "
            "makes it another run: undo it, and train one from the start"
        )


def check_code(
    folder: Path, description: RunDescription, recipe: Recipe, *, accept: bool = False
) -> bool:
    """Whether the code that a recipe names was edited after a run's start; raise if it must not be.

    Arguments:
        folder: The run folder.
        description: The description of the run.
        recipe: The recipe to continue with.
        accept: Whether the user asked for the edited code, and the run can continue with it.
    """
    edited = compare_code(find_code(recipe), description.code)
    if edited and not accept:
        raise RunError(
            f"expected the code that the run in {folder} was trained with, got {'; '.join(edited)}:"
            " undo the edit, or train from the start with another --output. An unfinished run also "
            f"continues with the edited code: cayley resume {folder} --continue-with --trust"
        )
    return bool(edited)


def check_vocabulary(
    folder: Path, description: RunDescription, task: Task, data: Path | None
) -> None:
    """Raise if tokens do not have the numbers that a run was trained with.

    Arguments:
        folder: The run folder.
        description: The description of the run.
        task: Its task, with the data of today.
        data: Where these are.
    """
    if description.vocabulary and description.vocabulary != task.vocabulary_digest:
        raise RunError(
            f"expected the text that the run in {folder} was trained with, from "
            f"{description.data.folder}, got {data}, whose training part has other tokens or other "
            "frequencies, so that its tokens have other numbers: give back the text of the run, "
            "at its place or with --data"
        )


def change_description(
    description: RunDescription, recipe: Recipe, loop: Loop, kind: Literal["extended", "edited"]
) -> RunDescription:
    """The content of ``run.json`` after a change.

    Arguments:
        description: Its current content.
        recipe: The recipe before the change.
        loop: The loop with the new recipe, at the checkpoint.
        kind: The kind of change.
    """
    same = write_recipe(loop.recipe) == write_recipe(recipe)
    code = find_code(loop.recipe)
    edited = compare_code(code, description.code)
    # what an older run was trained with until now stays unknown
    unknown = find_code(recipe).keys() - description.code.keys()
    change = RecipeChange(
        step=loop.progress.step,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        kind=kind,
        differences=(*([] if same else edits(loop.recipe, recipe)), *edited),
        before=description.seal.recipe,
        note=_note(loop) if kind == "extended" else "",
    )
    return replace(
        description,
        code={module: one for module, one in code.items() if module not in unknown},
        settings=write_recipe(loop.recipe),
        steps=loop.times.steps,
        changes=(*description.changes, change),
    )


def _note(loop: Loop) -> str:
    """How a run with the new length from the start would differ; empty if it would not."""
    progress, every = loop.progress, loop.recipe.evaluation.every
    due = progress.position.batch == 0 if every == "epoch" else progress.step % every == 0
    if due or progress.evaluated != progress.step:
        return ""
    return f"the evaluation after step {progress.step} is one that a longer run would not have had"
