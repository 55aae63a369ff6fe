"""A worker, which runs trials one after another until the study is complete."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from cayley.lab.errors import Interrupted, LabError, RecipeError
from cayley.lab.runs import Interrupts, TrialInfo
from cayley.lab.sweeps.choices import make_recipe, write_setting
from cayley.lab.sweeps.outcomes import Outcome
from cayley.lab.sweeps.study import Sweep, Task
from cayley.lab.sweeps.trials import run_trial
from cayley.lab.training import Reporter, RunSettings

__all__ = ["FinishedTrial", "work"]

# the time between two checks whether another worker has died
LOOK_SECONDS = 2.0


@dataclass(frozen=True)
class FinishedTrial:
    """A trial that this worker has done.

    Attributes:
        number: The number of the trial.
        choice: Its settings.
        folder: Its run folder.
        outcome: Its outcome.
        seconds: How long this worker took.
    """

    number: int
    choice: dict[str, Any]
    folder: Path
    outcome: Outcome
    seconds: float


def work(
    sweep: Sweep,
    settings: RunSettings,
    *,
    interrupts: Interrupts,
    tell: Callable[[FinishedTrial], None] = lambda trial: None,
    reporter: Callable[[Path], Reporter | None] = lambda folder: None,
    look_seconds: float = LOOK_SECONDS,
) -> None:
    """Run trials of a study until it has all of them, and none is running.

    A worker that has nothing left to do waits for the others, and takes over their trials if they
    die.

    Arguments:
        sweep: The study.
        settings: Machine and data.
        interrupts: Signals that ask to stop.
        tell: Called with every trial that is done.
        reporter: Returns what shows the progress of the run in a folder.
        look_seconds: The time between two checks of the other workers.
    """
    while True:
        if interrupts.signal:
            raise Interrupted(
                "stopped between two trials; continue with the same command", interrupts.signal
            )
        task, others = sweep.claim()
        if task is None:
            if not others:
                return
            time.sleep(look_seconds)
            continue
        began = time.monotonic()
        with task.claim:
            outcome = _do(sweep, task, settings, interrupts, reporter(task.folder))
            counted = sweep.finish(task, outcome)
        if counted:
            seconds = time.monotonic() - began
            tell(FinishedTrial(task.number, task.choice, task.folder, outcome, seconds))


def _do(
    sweep: Sweep,
    task: Task,
    settings: RunSettings,
    interrupts: Interrupts,
    reporter: Reporter | None,
) -> Outcome:
    overrides = [write_setting(key, value) for key, value in task.choice.items()]
    settings = replace(
        settings,
        overrides=(*sweep.space.set, *overrides),
        trial=TrialInfo(sweep.name, task.number, task.choice),
    )
    try:
        recipe = make_recipe(sweep.base, task.choice)
    except RecipeError as error:
        return Outcome("failed", reason=str(error))
    try:
        return run_trial(
            recipe,
            task.folder,
            metric=(sweep.space.split, sweep.space.score),
            settings=settings,
            report=partial(sweep.report, task),
            reporter=reporter,
            interrupts=interrupts,
        )
    except Interrupted as error:
        raise Interrupted(
            f"stopped in trial {task.number}, after a checkpoint; continue with the same command",
            error.code - 128,
        ) from error
    except LabError:
        # the user can fix it, and then continue the trial
        raise
    except Exception as error:
        sweep.count_fault(task, error)
        raise
