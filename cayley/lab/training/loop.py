"""The loop around a learner: when to evaluate, to record, to save, and to stop."""

import itertools
import math
import statistics
import time
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor

from cayley.lab.errors import Interrupted, LabError, NotFinite, RecipeError
from cayley.lab.processes import find_processes
from cayley.lab.recipes import Recipe
from cayley.lab.runs import (
    CRASHED,
    NOT_FINITE,
    Interrupts,
    Mark,
    RunFolder,
    RunResult,
    SharedFolder,
    explain_damage,
)
from cayley.lab.tasks import Batch, Metric, Prefetcher, Split, Task
from cayley.lab.tasks.scoring import batches_to_score
from cayley.lab.training.agreement import Agreement
from cayley.lab.training.evaluation import (
    audio_metrics,
    deciding_metric,
    evaluated_splits,
    evaluation_batch,
    score_model,
)
from cayley.lab.training.learner import Learner
from cayley.lab.training.progress import Progress
from cayley.lab.training.reporters import Reporter
from cayley.lab.training.selection import Evaluation, Scores, Selection
from cayley.lab.training.timetable import Timetable

__all__ = ["Loop"]

# a longer evaluation can be interrupted, so a checkpoint is saved before it
LONG_SECONDS = 1.0
STOPPED = "there is a checkpoint of this step"
REMEDY = (
    "the last good checkpoint is kept. Try a smaller learning rate (--set optim.lr=…) or clipping "
    "(--set training.clip_norm=1)"
)


class Loop:
    """Training from the current step of a run to its end.

    Everything that the next step depends on is in the checkpoint: a restored loop continues as if
    it had never stopped, bit for bit on the same device.

    Arguments:
        recipe: The recipe of the run.
        task: The task to train on.
        learner: The model, and what changes its weights.
        run: The run folder.
        reporter: Shows the progress.
        seed: The seed of the examples and their order.
        interrupts: Signals that ask to stop; None to ignore signals.
        checkpoint_seconds: The time between two checkpoints.
    """

    def __init__(
        self,
        recipe: Recipe,
        task: Task,
        learner: Learner,
        run: RunFolder | SharedFolder,
        reporter: Reporter,
        *,
        seed: int,
        interrupts: Interrupts | None = None,
        checkpoint_seconds: float = 60.0,
    ) -> None:
        self.recipe = recipe
        self.task = task
        self.learner = learner
        self.run = run
        self.reporter = reporter
        self.seed = seed
        self.interrupts = interrupts
        self.checkpoint_seconds = checkpoint_seconds
        self.agreement = Agreement(find_processes())
        self.device = learner.engine.device
        self.dtype = next(learner.model.parameters()).dtype
        self.batches = Prefetcher(
            task,
            "train",
            recipe.training.batch,
            seed=seed,
            device=self.device,
            dtype=self.dtype,
        )
        self.splits = evaluated_splits(recipe, task)
        metric = deciding_metric(recipe, task)
        self.selection = Selection(metric.name, metric.better, recipe.evaluation.select)
        self.progress = Progress()
        epoch = task.steps("train", recipe.training.batch, seed=seed)
        self.times = Timetable(recipe, epoch, self.progress, self.selection)
        # losses stay on the device, so that steps need not wait for it
        self.losses = torch.zeros(self.times.log, dtype=torch.float64, device=self.device)
        self.waiting = 0
        self.saved = -math.inf
        self.long = True

    @property
    def signal(self) -> int:
        """The number of the signal that asks this process to stop, or 0."""
        return 0 if self.interrupts is None else self.interrupts.signal

    def train(self) -> RunResult:
        """Train to the end, and write the result."""
        self.progress.watch.start()
        try:
            while self.go_on():
                self.step()
            return self.finish()
        except NotFinite as error:
            self.fail(error)
            raise
        except Exception as error:
            self.crash(error)
            raise

    def go_on(self) -> bool:
        """Do what is due before a step; return whether there is a step to take.

        Raises if a score is not finite, or if a signal asks to stop.
        """
        if self.times.evaluation_due:
            self.score_splits()
        if self.times.finished:
            return False
        due = time.monotonic() - self.saved > self.checkpoint_seconds
        signal, due = self.agreement.agree(signal=self.signal, due=due)
        if signal:
            self.flush()
            self.event("interrupted", STOPPED)
        if signal or due:
            self.save()
        self.stop_if_asked(signal)
        return True

    def step(self) -> None:
        """Take one step."""
        batch = self.next_batch()
        self.take(batch, self.learner.learn(batch))

    def next_batch(self) -> Batch:
        """The batch of the next step."""
        return self.batches.batch(self.progress.position)

    def take(self, batch: Batch, loss: Tensor) -> None:
        """Record a step that the learner has taken.

        Arguments:
            batch: The batch of the step.
            loss: The loss before the step, a scalar on the device.
        """
        progress = self.progress
        self.losses[self.waiting] = loss
        self.waiting += 1
        progress.step += 1
        progress.position = batch.next
        if progress.step % self.times.log == 0:
            self.log()
        if batch.next.batch == 0:
            self.flush()
            progress.end_epoch()
        self.reporter.step(progress.step, self.times.epoch)

    def fail(self, error: NotFinite) -> None:
        """Record that the run cannot continue."""
        self.event(NOT_FINITE, str(error))

    def crash(self, error: Exception) -> None:
        """Record an error of Python or torch; those of the laboratory explain themselves."""
        if not isinstance(error, LabError):
            what = str(error).partition("\n")[0]
            self.event(CRASHED, f"{type(error).__name__}: {what}")

    def finish(self) -> RunResult:
        """Write the checkpoint and the result of a run that has reached its end."""
        if self.times.stopped_early:
            self.event("stopped early", f"no improvement in {self.selection.stale} evaluations")
        self.save()
        result = self.result()
        self.run.finish(result)
        return result

    def flush(self) -> None:
        """Fetch the losses from the device, and add them up; raise if one is not finite."""
        first = self.progress.step - self.waiting + 1
        losses = self.losses[: self.waiting]
        share = self.learner.share
        losses = (losses if share is None else share.total(losses)).tolist()
        self.waiting = 0
        for step, loss in enumerate(losses, first):
            if not math.isfinite(loss):
                raise NotFinite(f"the loss of step {step} is {loss}; {REMEDY}")
            self.progress.logged.add(loss)
            self.progress.trained.add(loss)

    def log(self) -> None:
        """Record the mean loss since the last record."""
        self.flush()
        self.record(
            "train",
            loss=self.progress.logged.take(),
            lr=self.learner.rates(),
            seconds=round(self.progress.watch.seconds, 3),
        )

    def score_splits(self) -> None:
        """Score all splits, and save the weights if they are the best so far."""
        progress = self.progress
        self.flush()
        if self.long:
            self.save()
        progress.watch.stop()
        began = time.perf_counter()
        scores: Scores = {split: self.score(split) for split in self.splits}
        deciding = self.selection.metric
        if lacking := [split for split, found in scores.items() if deciding not in found]:
            raise RecipeError(
                f"evaluation.metric: expected a value of {deciding}, which selects the evaluation, "
                f"got none for the split {lacking[0]}: return a number from its pool, or choose "
                "another metric"
            )
        seconds = self.agreement.longest(time.perf_counter() - began)
        self.long = seconds > LONG_SECONDS
        progress.evaluation_seconds += seconds
        progress.evaluated = progress.step
        loss = progress.end_interval()
        for split in self.selection.add(Evaluation(progress.step, self.times.epoch, scores)):
            # papers select by the training set only if each split has its own selection
            if split != "train" or self.selection.select == "each":
                self.save_best(split, scores)
        self.record(
            "eval",
            scores=scores,
            train_loss=loss,
            seconds=round(progress.watch.seconds, 3),
            evaluation_seconds=round(progress.evaluation_seconds, 3),
        )
        progress.watch.start()

    def score(self, split: Split, metrics: tuple[Metric, ...] | None = None) -> dict[str, float]:
        """The metrics of a split; a long evaluation by one process can be interrupted."""
        processes, B = self.agreement.processes, evaluation_batch(self.recipe)
        batches = len(batches_to_score(self.task, split, B, processes.rank, processes.count))
        done = itertools.count()

        def between() -> None:
            self.reporter.evaluate(split, next(done), batches)
            # others would wait for the scores of this process: several stop after the evaluation
            if self.long and self.signal and not processes.several:
                self.event("interrupted", STOPPED)
                self.stop_if_asked(self.signal)

        try:
            return score_model(
                self.recipe,
                self.task,
                self.learner.forward,
                split,
                seed=self.seed,
                device=self.device,
                dtype=self.dtype,
                metrics=metrics,
                between=between,
                processes=processes,
            )
        except NotFinite as error:
            raise NotFinite(f"{error} after step {self.progress.step}; {REMEDY}") from error

    def save_best(self, split: str, scores: Scores) -> None:
        """Save the weights of the best evaluation on a split."""
        weights = {"model": self.learner.model.state_dict(), "scores": scores}
        self.run.save(f"best-{split}.pt", weights | {"step": self.progress.step})

    def save(self) -> None:
        """Write the checkpoint; raise if a loss or a weight is not finite."""
        self.flush()
        if not self.learner.is_finite():
            raise NotFinite(f"weights are not finite after step {self.progress.step}; {REMEDY}")
        mark = self.run.mark()
        self.run.save(
            "checkpoint.pt",
            {
                "learner": self.learner.state_dict(),
                "progress": self.progress.state_dict(),
                "selection": self.selection.state_dict(),
                "mark": (mark.size, mark.sha256),
            },
        )
        self.saved = time.monotonic()

    def restore(self, *, edited: bool = False) -> None:
        """Load the checkpoint, and drop the metrics after it.

        Arguments:
            edited: Whether the recipe differs from that of the checkpoint.
        """
        with explain_damage(self.run.folder, "checkpoint.pt"):
            state = self.run.load("checkpoint.pt")
            self.progress.load_state_dict(state["progress"])
            if edited:
                by_step = self.recipe.optim.schedule.every == "step"
                progress = self.progress
                steps = progress.step if by_step else progress.position.epoch
                self.learner.load_with_new_settings(state["learner"], steps)
            else:
                self.learner.load_state_dict(state["learner"])
            self.selection.load_state_dict(state["selection"])
            mark = Mark(*state["mark"])
        self.run.rewind(mark, self.progress.step)

    def stop_if_asked(self, signal: int) -> None:
        """Raise if a signal asks to stop; the checkpoint is already written."""
        if signal:
            raise Interrupted(
                f"stopped after step {self.progress.step}; continue with: cayley resume "
                f"{self.run.folder}",
                signal,
            )

    def record(self, kind: str, **values: Any) -> None:
        """Write a record to the metrics, and show it."""
        record = {"kind": kind, "step": self.progress.step, "epoch": self.times.epoch, **values}
        self.run.record(record)
        self.reporter.record(record)

    def event(self, event: str, message: str) -> None:
        """Record something that is not a number."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.record("event", event=event, message=message, time=now)

    def result(self) -> RunResult:
        """The numbers of the run."""
        progress, selection = self.progress, self.selection
        assert selection.last is not None
        epochs = progress.epoch_seconds
        return RunResult(
            status="stopped early" if self.times.stopped_early else "done",
            step=progress.step,
            epoch=self.times.epoch,
            seconds=progress.watch.seconds,
            evaluation_seconds=progress.evaluation_seconds,
            seconds_per_epoch=statistics.median(epochs) if epochs else None,
            select=selection.select,
            selected=selection.selected(),
            best=selection.best_values(),
            last=selection.last.scores,
            train_loss_best=progress.best_train_loss,
            audio=self.audio() if self.recipe.evaluation.audio else None,
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
            metrics=self.run.mark().sha256,
        )

    def audio(self) -> dict[str, float]:
        """Scores of the sound that the selected weights predict for the test set."""
        metrics = audio_metrics(self.task)
        chosen = self.selection.selected()["test"].chosen_by
        if chosen != "last":
            best = f"best-{chosen}.pt"
            with explain_damage(self.run.folder, best):
                self.learner.model.load_state_dict(self.run.load(best)["model"])
        return self.score("test", metrics)
