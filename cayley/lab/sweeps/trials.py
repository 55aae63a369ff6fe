"""One trial: an ordinary run, whose evaluations are reported on the way."""

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
from cayley.lab.runs import Interrupts, Record, RunDescription, RunFolder, RunResult, read_run
from cayley.lab.sweeps.outcomes import Outcome
from cayley.lab.training import Quiet, Reporter, RunSettings, resume, train

__all__ = ["Report", "run_trial"]

# takes how far a run is and a score; whether the run is to end there
Report = Callable[[int, float], bool]
# stands among the signals that stop a run after its step, as no user sends it
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
    """Train a recipe in a folder, or go on with the run that was begun there.

    Nothing here knows of Optuna: what calls it may be any scheduler.

    Arguments:
        recipe: Of the trial.
        folder: Of its run.
        metric: Split and metric of the value.
        settings: Machine, data and number of the trial.
        report: Is told of every evaluation but that before the first step: after how many epochs
            or, where evaluations go by steps, steps; and the value.
        reporter: What shows the progress; None for nothing.
        interrupts: Signals that ask to stop; the run then has a checkpoint, and the error is
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
                # the recipe is the one that is asked for here
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
        # it came to its end before it could stop
        interrupts.signal = 0
    return Outcome("complete", result.selected[split].scores[score])


def _check_same(folder: Path, recipe: Recipe, settings: RunSettings) -> None:
    """Raise unless the run in a folder is of this trial."""
    description, found = read_run(folder)
    differ = differences(found, recipe)
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
    message = "a pruner of the sweep ended it; cayley resume goes on all the same"
    event = {"event": "pruned", "message": message, "time": now}
    with RunFolder(folder) as run:
        run.record({"kind": "event", "step": watcher.number, "epoch": watcher.epoch, **event})


class _Watcher(Reporter):
    """Passes everything on, and tells of evaluations.

    Arguments:
        inner: What shows the progress.
        split: Of the value.
        score: The metric.
        by_epoch: Whether evaluations go by epochs.
        report: Is told.
        interrupts: By which the run is ended.
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
        """Pass it on, and tell of an evaluation."""
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
