"""One trial: an ordinary run, whose evaluations are reported as it trains."""

import signal
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from torch import nn

from cayley.lab.errors import (
    Interrupted,
    NotFinite,
    RecipeError,
    RunError,
    is_shortage,
)
from cayley.lab.recipes import Recipe, differences
from cayley.lab.runs import (
    Interrupts,
    Record,
    RunDescription,
    RunFolder,
    RunResult,
    compare_code,
    find_code,
    read_run,
)
from cayley.lab.sweeps.outcomes import Outcome
from cayley.lab.training import Quiet, Reporter, RunSettings, resume, train

__all__ = ["Report", "run_trial"]

# takes the step or epoch and the score, and returns whether to prune the run
Report = Callable[[int, float], bool]
# used like a signal that stops a run after the current step; users do not send this one
PRUNE = int(signal.SIGUSR2)


def run_trial(
    recipe: Recipe,
    folder: Path,
    *,
    metric: tuple[str, str],
    settings: RunSettings,
    report: Report | None = None,
    reporter: Reporter | None = None,
    interrupts: Interrupts | None = None,
) -> Outcome:
    """Train a recipe in a folder, or continue the run that was started there.

    This does not depend on Optuna, so that any scheduler can call it.

    Arguments:
        recipe: The recipe of the trial.
        folder: Its run folder.
        metric: Split and metric of the value.
        settings: Machine, data and number of the trial.
        report: Called after every evaluation, except one before the first step, with the value
            and the number of epochs (of steps, if evaluations are every few steps) before it.
        reporter: Shows the progress; None to show nothing.
        interrupts: Signals that ask to stop; the run then saves a checkpoint, and the error is
            passed on.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from cayley.lab.recipes import find_recipe
        >>> recipe = find_recipe("quickstart").recipe(overrides=["training.steps=2"])
        >>> with TemporaryDirectory() as folder:
        ...     outcome = run_trial(
        ...         recipe,
        ...         Path(folder, "trial"),
        ...         metric=("valid", "mse"),
        ...         settings=RunSettings(tiny=True),
        ...     )
        >>> outcome.state, outcome.value is not None
        ('complete', True)
    """
    split, score = metric
    interrupts = Interrupts() if interrupts is None else interrupts
    by_epoch = recipe.evaluation.every == "epoch"
    inner = Quiet() if reporter is None else reporter
    watcher = _Watcher(inner, split, score, by_epoch, report, interrupts)
    try:
        if (folder / "run.json").exists():
            _check_same(folder, recipe, settings)
            device = settings.machine.device
            result = resume(
                folder,
                device="" if device == "auto" else device,
                data=settings.data,
                reporter=watcher,
                interrupts=interrupts,
                checkpoint_seconds=settings.checkpoint_seconds,
                # the user has just asked for this recipe
                trust=True,
            )
        else:
            result = train(
                recipe, folder, settings=settings, reporter=watcher, interrupts=interrupts
            )
    except Interrupted:
        if interrupts.signal != PRUNE:
            raise
        interrupts.signal = 0
        _record_end(folder, watcher)
        return Outcome("pruned", reason=f"pruned after step {watcher.number}")
    except NotFinite as error:
        return Outcome("pruned", reason=str(error))
    except RecipeError as error:
        return Outcome("failed", reason=str(error))
    except (MemoryError, RuntimeError) as error:
        if not is_shortage(error):
            raise
        return Outcome("failed", reason="too little memory: " + str(error).partition("\n")[0])
    if interrupts.signal == PRUNE:
        # the run finished before it could stop
        interrupts.signal = 0
    return Outcome("complete", result.selected[split].scores[score])


def _check_same(folder: Path, recipe: Recipe, settings: RunSettings) -> None:
    """Raise unless the run in a folder belongs to this trial."""
    description, found = read_run(folder)
    differ = differences(found, recipe)
    differ += compare_code(description.code, find_code(recipe))
    if description.trial != settings.trial:
        differ.append("another trial" if description.trial else "no trial of a sweep")
    if description.tiny != settings.tiny:
        differ.append("a few made-up examples" if description.tiny else "the data, not --tiny")
    if differ:
        raise RunError(
            f"expected the run of this trial in {folder}, got one with {'; '.join(differ)}: choose "
            "another --output or --study, or delete the folder"
        )


def _record_end(folder: Path, watcher: "_Watcher") -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    message = "ended by the pruner of the sweep; cayley resume continues it all the same"
    event = {"event": "pruned", "message": message, "time": now}
    with RunFolder(folder) as run:
        run.record({"kind": "event", "step": watcher.number, "epoch": watcher.epoch, **event})


class _Watcher(Reporter):
    """Passes everything on, and reports evaluations.

    Arguments:
        inner: The reporter that shows the progress.
        split: The split of the value.
        score: The metric of the value.
        by_epoch: Whether there is an evaluation every epoch.
        report: Called with the value of every evaluation.
        interrupts: Used to end the run.
    """

    def __init__(
        self,
        inner: Reporter,
        split: str,
        score: str,
        by_epoch: bool,
        report: Report | None,
        interrupts: Interrupts,
    ) -> None:
        self.inner = inner
        self.split, self.score = split, score
        self.by_epoch = by_epoch
        self.report = report
        self.interrupts = interrupts
        self.number, self.epoch = 0, 0.0

    def begin(self, description: RunDescription, step: int, model: nn.Module) -> None:
        """Pass it on."""
        self.inner.begin(description, step, model)

    def step(self, step: int, epoch: float) -> None:
        """Pass it on."""
        self.inner.step(step, epoch)

    def evaluate(self, split: str, batch: int, batches: int) -> None:
        """Pass it on."""
        self.inner.evaluate(split, batch, batches)

    def record(self, record: Record) -> None:
        """Pass it on, and report an evaluation."""
        self.inner.record(record)
        if record["kind"] != "eval" or not record["step"] or self.report is None:
            return
        place = round(record["epoch"]) if self.by_epoch else record["step"]
        if self.report(place, record["scores"][self.split][self.score]):
            self.number, self.epoch = record["step"], record["epoch"]
            if not self.interrupts.signal:
                self.interrupts.signal = PRUNE

    def end(self, result: RunResult | None) -> None:
        """Pass it on."""
        self.inner.end(result)

    def found(self, description: RunDescription, result: RunResult) -> None:
        """Pass it on."""
        self.inner.found(description, result)
