"""A sweep in a storage: started once, joined by all workers that have the same space."""

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
from cayley.lab.sweeps.space import Space
from cayley.lab.sweeps.storage import Storage, explain_storage

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

__all__ = ["Sweep", "Task", "join"]

# attributes in the storage
REASON, FAULTS = "reason", "faults"
# how often a trial may crash its worker
MOST_FAULTS = 3
# samplers whose choices depend on the seed alone, which must be the same for all workers
SAME_SEED = ("qmc",)


@dataclass
class Task:
    """A trial for this worker.

    Attributes:
        number: The number of the trial.
        choice: Its settings.
        folder: Its run folder.
        claim: The claim of this worker to the trial.
        trial: Optuna's trial object.
        reported: The steps or epochs whose values are in the storage.
    """

    number: int
    choice: dict[str, Any]
    folder: Path
    claim: Claim
    trial: "optuna.Trial"
    reported: set[int]


@dataclass
class Sweep:
    """A study, and what this worker needs for its trials.

    Attributes:
        name: The name of the study.
        space: The space to be searched.
        base: The recipe without the searched settings, as TOML.
        direction: Which values are better.
        trials: The total number of trials.
        folder: The folder of the runs.
        storage: Where the study is.
        study: Optuna's study object.
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
        """Take over an abandoned trial, or start one; also return how many others are running.

        If there is no trial, and no others are running, the study is finished.
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
        """Record the outcome of a trial; False if another worker has taken the trial over."""
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
        """Count a crash of a trial's worker; after a few crashes the trial has failed."""
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
        """Report an evaluation to the storage; return whether to prune the trial."""
        from optuna.exceptions import UpdateFinishedTrialError

        with explain_storage(self.storage.url):
            try:
                if step not in task.reported:
                    task.trial.report(value, step)
                    task.reported.add(step)
                return task.trial.should_prune()
            except UpdateFinishedTrialError:
                # another worker has taken the trial over, and finished it
                return True

    def _begin(self, trial: "optuna.Trial") -> Task:
        return self._own(trial, self.folder / f"trial-{trial.number:04}")

    def _take(self, frozen: "FrozenTrial") -> Task:
        import optuna

        self._seed(frozen.number)
        folder = self.folder / f"trial-{frozen.number:04}"
        owner = frozen.user_attrs.get(OWNER)
        # the checkpoint is there, even if this worker would use another folder
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
        """Give the sampler a seed for each trial: with a common one, workers would choose alike."""
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
    """Start a study, or join one that was started with the same space.

    Arguments:
        space: The space to be searched.
        storage: Where the study is.
        output: The folder of all runs; those of the study are in a folder of its name.
        name: The name of the study; empty for that of the space.
        trials: The total number of trials; 0 for that of the space.
        direction: Which values are better.
        tiny: Whether a few made-up examples replace the data.
        precision: The precision of the computation.
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
                    f"expected a study of cayley sweep, got {name!r} in {storage.url}, which is "
                    "from another program: choose another --study"
                )
            study.set_user_attr(SPACE, wanted)
        elif differ := find_differences(found, wanted):
            raise RecipeError(
                f"expected the space that the study {name!r} was started with, got a different "
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
    """Write ``sweep.json``, with which a report needs no storage."""
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
        part.write_text(json.dumps(record.to_json(), indent=1) + "\n", encoding="utf-8")
        os.replace(part, folder / SWEEP_FILE)
    except OSError as error:
        raise RunError(
            f"could not write {folder}: {error.strerror}: choose another --output"
        ) from error
