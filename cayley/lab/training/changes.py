"""Changes to a run's recipe after its start: a longer run, or edited settings."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal

from cayley.lab.errors import RunError
from cayley.lab.recipes import Recipe, edits, flatten, write_recipe
from cayley.lab.runs import RecipeChange, RunDescription, RunResult
from cayley.lab.training.loop import Loop

__all__ = ["change_description", "check_edit", "lengthen"]

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
    if (edited.name, edited.table, edited.variant) != (recipe.name, recipe.table, recipe.variant):
        wrong.append("name, table or variant")
    if wrong:
        raise RunError(
            f"expected changes with which a run can continue, got one of {', '.join(wrong)}, which "
            "makes it another run: undo it, and train one from the start"
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
    change = RecipeChange(
        step=loop.progress.step,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        kind=kind,
        differences=tuple(edits(loop.recipe, recipe)),
        before=description.seal.recipe,
        note=_note(loop) if kind == "extended" else "",
    )
    return replace(
        description,
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
