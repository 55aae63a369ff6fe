"""A sweep in a storage: begun once, joined by all workers that have the same space."""

import json
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cayley.lab.errors import RecipeError, RunError
from cayley.lab.recipes import write_recipe
from cayley.lab.runs import SWEEP_FILE, Precision, SearchedKey, SweepRecord
from cayley.lab.sweeps.choices import grid, make_recipe
from cayley.lab.sweeps.claims import OWNER, Claim, Owner, Watch
from cayley.lab.sweeps.engine import encode, make_pruner, make_sampler, suggest
from cayley.lab.sweeps.identity import SPACE, Direction, find_differences, make_identity
from cayley.lab.sweeps.outcomes import Outcome
from cayley.lab.sweeps.results import find_best
from cayley.lab.sweeps.space import Space
from cayley.lab.sweeps.storage import Storage, explain_storage

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

__all__ = ["Sweep", "Task", "join"]

# attributes in the storage
REASON, FAULTS = "reason", "faults"
# how often a trial may break its worker
MOST_FAULTS = 3
# samplers whose choices depend on the seed alone, which must be the same for all workers
SAME_SEED = ("qmc",)


@dataclass
class Task:
    """A trial that is to be done here.

    Attributes:
        number: Of the trial.
        choice: Its settings.
        folder: Of its run.
        claim: What says that it is ours.
        trial: What Optuna calls a trial.
        reported: How far values are known by the storage.
    """

    number: int
    choice: dict[str, Any]
    folder: Path
    claim: Claim
    trial: "optuna.Trial"
    reported: set[int]


@dataclass
class Sweep:
    """A study, and what this worker needs to do its trials.

    Attributes:
        name: Of the study.
        space: What is searched.
        base: The recipe without what is searched, as TOML.
        direction: Which values are better.
        trials: How many there are to be in all.
        folder: Of the runs.
        storage: Where the study is.
        study: What Optuna calls a study.
    """

    name: str
    space: Space
    base: str
    direction: Direction
    trials: int
    folder: Path
    storage: Storage
    study: "optuna.Study"
    watch: Watch = field(default_factory=Watch)

    def claim(self) -> tuple[Task | None, int]:
        """Take up a trial that was left behind, or begin one; and how many others work on.

        No trial, and no others: there is nothing left to do.
        """
        with self.storage.hold():
            trials = self.study.get_trials(deepcopy=False)
            running = [one for one in trials if one.state.name == "RUNNING"]
            for one in running:
                if self.watch.is_left(one):
                    return self._take(one), len(running) - 1
            waiting = [one for one in trials if one.state.name == "WAITING"]
            number = waiting[0].number if waiting else len(trials)
            if number < self.trials:
                self._seed(number)
                if not waiting and self.space.sampler.name == "grid":
                    choice = grid(self.space)[number]
                    self.study.enqueue_trial({key: encode(one) for key, one in choice.items()})
                return self._begin(self.study.ask()), len(running)
            return None, len(running)

    def finish(self, task: Task, outcome: Outcome) -> bool:
        """Write down what a trial came to; False if another worker had taken it up."""
        from optuna.trial import TrialState

        with self.storage.hold():
            if not self._is_ours(task):
                return False
            if outcome.reason:
                task.trial.set_user_attr(REASON, outcome.reason)
            self._seed(task.number)
            if outcome.state == "complete":
                self.study.tell(task.number, outcome.value)
            else:
                state = TrialState.PRUNED if outcome.state == "pruned" else TrialState.FAIL
                self.study.tell(task.number, state=state)
        return True

    def count_fault(self, task: Task, error: Exception) -> None:
        """Note that a trial has broken its worker; one that does it again and again has failed."""
        from optuna.trial import TrialState

        with self.storage.hold():
            if not self._is_ours(task):
                return
            faults = task.trial.user_attrs.get(FAULTS, 0) + 1
            task.trial.set_user_attr(FAULTS, faults)
            if faults >= MOST_FAULTS:
                task.trial.set_user_attr(REASON, f"{type(error).__name__}: {error}")
                self.study.tell(task.number, state=TrialState.FAIL)

    def report(self, task: Task, step: int, value: float) -> bool:
        """Tell the storage of an evaluation; whether the trial is to end there."""
        from optuna.exceptions import UpdateFinishedTrialError

        with explain_storage(self.storage.url):
            try:
                if step not in task.reported:
                    task.trial.report(value, step)
                    task.reported.add(step)
                return task.trial.should_prune()
            except UpdateFinishedTrialError:
                # another worker has taken it up, and finished it
                return True

    def best(self) -> "FrozenTrial | None":
        """The finished trial with the best value; None without one."""
        with explain_storage(self.storage.url):
            return find_best(self.study.get_trials(deepcopy=False), self.direction)

    def _begin(self, trial: "optuna.Trial") -> Task:
        return self._own(trial, self.folder / f"trial-{trial.number:04}")

    def _take(self, frozen: "FrozenTrial") -> Task:
        import optuna

        self._seed(frozen.number)
        folder = self.folder / f"trial-{frozen.number:04}"
        owner = frozen.user_attrs.get(OWNER)
        # its checkpoint is there, wherever this worker would have put it
        if owner is not None and Path(owner["folder"]).is_dir():
            folder = Path(owner["folder"])
        return self._own(optuna.Trial(self.study, frozen._trial_id), folder)

    def _own(self, trial: "optuna.Trial", folder: Path) -> Task:
        choice = suggest(trial, self.space)
        owner = Owner.here(folder)
        claim = Claim(owner, self.storage.optuna, trial._trial_id)
        trial.set_user_attr(OWNER, asdict(owner))
        known = self.study.get_trials(deepcopy=False)[trial.number].intermediate_values
        return Task(trial.number, choice, folder, claim, trial, {*known})

    def _is_ours(self, task: Task) -> bool:
        trial = self.study.get_trials(deepcopy=False)[task.number]
        owner = trial.user_attrs.get(OWNER, {}).get("id")
        return trial.state.name == "RUNNING" and owner == task.claim.owner.id

    def _seed(self, number: int) -> None:
        """Give the sampler the seed of a trial: workers that have one in common would agree."""
        settings = self.space.sampler
        if "seed" in settings.options and settings.name not in SAME_SEED:
            seed = settings.options["seed"] + number
            settings = replace(settings, options={**settings.options, "seed": seed})
            self.study.sampler = make_sampler(settings)


def join(
    space: Space,
    storage: Storage,
    output: Path,
    *,
    name: str = "",
    trials: int = 0,
    direction: Direction,
    tiny: bool = False,
    precision: Precision = "32-true",
) -> Sweep:
    """Begin a study, or join one that was begun with the same space.

    Arguments:
        space: What is to be searched.
        storage: Where the study is.
        output: Where runs go, into a folder of the study's name.
        name: Of the study; empty for that of the space.
        trials: How many there are to be in all; 0 for what the space says.
        direction: Which values are better.
        tiny: Whether a few made-up examples stand for the data.
        precision: Of the computation.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    name = name or space.name
    base = write_recipe(space.base(tiny=tiny))
    wanted = make_identity(space, base, direction, tiny, precision)
    sampler, pruner = make_sampler(space.sampler), make_pruner(space.pruner)
    with storage.hold():
        study = optuna.create_study(
            storage=storage.optuna,
            sampler=sampler,
            pruner=pruner,
            study_name=name,
            direction=direction,
            load_if_exists=True,
        )
        found = study.user_attrs.get(SPACE)
        if found is None:
            if study.get_trials(deepcopy=False):
                raise RunError(
                    f"expected a study of cayley sweep, got {name!r} in {storage.url}, which is of "
                    "another program: choose another --study"
                )
            study.set_user_attr(SPACE, wanted)
        elif differ := find_differences(found, wanted):
            raise RecipeError(
                f"expected the space that the study {name!r} was begun with, got another "
                f"{', '.join(differ)}: choose another --study, or undo the change"
            )
        folder = output / name
        _write_record(folder, name, space, base, direction)
    total = trials or space.trials
    if space.sampler.name == "grid":
        size = len(grid(space))
        if total > size:
            raise RecipeError(
                f"trials: expected at most the {size} choices of the grid, got {total}"
            )
        total = total or size
    return Sweep(name, space, base, direction, total, folder, storage, study)


def _write_record(folder: Path, name: str, space: Space, base: str, direction: Direction) -> None:
    """Write ``sweep.json``, from which a report is made without the storage."""
    keys = tuple(
        SearchedKey(one.key, one.values, one.low, one.high, one.log, one.step, bool(one.when))
        for one in space.parameters
    )
    record = SweepRecord(
        study=name,
        title=space.title,
        recipe=make_recipe(base, {}).name,
        metric=space.metric,
        direction=direction,
        keys=keys,
    )
    part = folder / f".{SWEEP_FILE}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(record.to_json(), indent=1) + "\n")
        os.replace(part, folder / SWEEP_FILE)
    except OSError as error:
        raise RunError(
            f"could not write {folder}: {error.strerror}: choose another --output"
        ) from error
