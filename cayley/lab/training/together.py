"""Several runs in one process, whose networks learn side by side."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cayley.lab.errors import Interrupted, LabError, NotFinite
from cayley.lab.recipes import Recipe
from cayley.lab.runs import (
    Interrupts,
    Mark,
    RunFolder,
    RunResult,
    check_format,
    read_result,
    read_run,
)
from cayley.lab.tasks import Batch, Task
from cayley.lab.training.changes import check_code, check_vocabulary
from cayley.lab.training.ensemble import Ensemble, check_together, shape_of
from cayley.lab.training.evaluation import check_work
from cayley.lab.training.learner import Learner
from cayley.lab.training.loop import Loop
from cayley.lab.training.reporters import Reporter
from cayley.lab.training.setup import RunSettings, build_task, describe, initial_model

__all__ = ["Member", "train_together"]


@dataclass(frozen=True)
class Member:
    """One of several runs that are trained together.

    Arguments:
        recipe: The recipe of the run.
        folder: The run folder. An unfinished run in it is continued; a finished one is left as it
            is.
        seed: The seed of the run.
        settings: Machine and data; the machine is the same for all members.
        reporter: Shows the progress of the run.
    """

    recipe: Recipe
    folder: Path
    seed: int
    settings: RunSettings
    reporter: Reporter


def train_together(
    members: Sequence[Member], *, interrupts: Interrupts | None = None
) -> list[RunResult | LabError]:
    """Train several runs at once, each as if it were alone, up to rounding.

    Every run has its own data, folder, metrics and checkpoints, and can be resumed alone. Networks
    of the same architecture whose batches have the same shape take a step side by side, as an
    :class:`~cayley.lab.training.ensemble.Ensemble`. When a run ends, or fails because a number is
    not finite, the others continue. The training time of a run is the time of its steps, which it
    shares with the others; ``run.json`` says with how many, and tables of times leave it out.

    Arguments:
        members: The runs.
        interrupts: Signals that ask to stop.

    Returns:
        For each run, its result or the error that ended it.
    """
    tasks: dict[str, Task] = {}
    learners: dict[int, Learner] = {}
    results: dict[int, RunResult | LabError] = {}
    # checked before any folder is made, so that a mistake leaves nothing behind
    for k, member in enumerate(members):
        if (member.folder / "result.json").exists():
            description, _ = read_run(member.folder)
            results[k] = result = read_result(member.folder, description)
            member.reporter.found(description, result)
            continue
        recipe, machine = member.recipe, member.settings.machine
        key = repr(recipe.task)
        task = tasks[key] = tasks.get(key) or build_task(recipe.task, member.settings)
        model = initial_model(recipe, task, member.seed, machine)
        check_work(recipe, task)
        check_together(recipe, model, machine.precision)
        learners[k] = Learner(recipe, task, model, machine)
    with ExitStack() as folders:
        going: dict[int, Loop] = {}
        try:
            for k, learner in learners.items():
                run = folders.enter_context(RunFolder(members[k].folder))
                going[k] = _start(members[k], learner, run, interrupts, len(learners))
            _Company(members, going, results).train()
        except Exception as error:
            for loop in going.values():
                loop.crash(error)
            raise
        finally:
            for k in going:
                members[k].reporter.end(None)
    return [results[k] for k in range(len(members))]


def _start(
    member: Member,
    learner: Learner,
    run: RunFolder,
    interrupts: Interrupts | None,
    together: int,
) -> Loop:
    """The loop of a run, of several, which starts, or continues from its checkpoint."""
    recipe, settings = member.recipe, member.settings
    loop = Loop(
        recipe,
        learner.task,
        learner,
        run,
        member.reporter,
        seed=member.seed,
        interrupts=interrupts,
        checkpoint_seconds=settings.checkpoint_seconds,
    )
    if run.has("run.json"):
        description, _ = read_run(member.folder)
        check_format(member.folder / "run.json", description)
        check_code(member.folder, description, recipe)
        check_vocabulary(member.folder, description, learner.task, settings.data)
        run.description = description
        if together > max(1, description.together):
            description = run.description = replace(description, together=together)
            run.write_json("run.json", description.to_json())
        if run.has("checkpoint.pt"):
            loop.restore()
        else:
            # without a checkpoint the run starts over, and earlier records do not count
            run.rewind(Mark())
    else:
        description = describe(recipe, loop, settings, together)
        run.begin(description)
    member.reporter.begin(description, loop.progress.step, learner.model)
    if loop.progress.step:
        loop.event("resumed", f"on {loop.device}")
    return loop


class _Company:
    """The loops of runs that are trained together.

    Arguments:
        members: All runs.
        going: The loops of unfinished runs, by index; a run is removed when it ends.
        results: The results of runs that have ended, by index.
    """

    def __init__(
        self,
        members: Sequence[Member],
        going: dict[int, Loop],
        results: dict[int, RunResult | LabError],
    ) -> None:
        self.members, self.going, self.results = members, going, results
        self.ensembles: dict[tuple[str, str], Ensemble] = {}

    def train(self) -> None:
        """Train until all runs have ended; raise if a signal asks to stop, after saving all."""
        while self.going:
            interrupted: list[Interrupted] = []
            for k, loop in [*self.going.items()]:
                try:
                    if not loop.go_on():
                        self._end(k, loop.finish())
                except NotFinite as error:
                    self._fail(k, error)
                except Interrupted as error:
                    interrupted.append(error)
                # evaluations and checkpoints of other runs do not count as this one's time
                loop.progress.watch.stop()
            if interrupted:
                count = len(self.going)
                raise Interrupted(
                    f"stopped {count} runs, each with a checkpoint; continue with the same command",
                    interrupted[0].code - 128,
                )
            self._step()

    def _step(self) -> None:
        """Take one step of each run."""
        groups: dict[tuple[Any, ...], list[tuple[int, Batch]]] = {}
        for k, loop in self.going.items():
            loop.progress.watch.start()
            batch = loop.next_batch()
            recipe = self.members[k].recipe
            kind = (repr(recipe.model), repr(recipe.task), *shape_of(batch))
            groups.setdefault(kind, []).append((k, batch))
        for (model, task, *_), group in groups.items():
            numbers, batches = zip(*group, strict=True)
            learners = [self.going[k].learner for k in numbers]
            if (model, task) not in self.ensembles:
                self.ensembles[model, task] = Ensemble(learners[0].model)
            losses = (
                self.ensembles[model, task].learn(learners, batches)
                if len(learners) > 1
                else [learners[0].learn(batches[0])]
            )
            for k, batch, loss in zip(numbers, batches, losses, strict=True):
                try:
                    self.going[k].take(batch, loss)
                except NotFinite as error:
                    self._fail(k, error)

    def _end(self, k: int, result: RunResult | LabError) -> None:
        del self.going[k]
        self.results[k] = result
        self.members[k].reporter.end(result if isinstance(result, RunResult) else None)

    def _fail(self, k: int, error: NotFinite) -> None:
        self.going[k].fail(error)
        self._end(k, error)
