"""Results of the studies in a storage: the states of their trials, and the best one."""

import socket
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cayley.lab.errors import RunError
from cayley.lab.recipes import Recipe
from cayley.lab.runs import find_optimism, find_state
from cayley.lab.runs.state import is_alive
from cayley.lab.sweeps.choices import make_recipe
from cayley.lab.sweeps.claims import OWNER
from cayley.lab.sweeps.identity import SPACE, Direction, read_choice
from cayley.lab.sweeps.storage import Storage, explain_storage

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

__all__ = ["best_recipe", "describe_studies", "find_best"]


def best_recipe(storage: Storage, name: str) -> tuple[Recipe, str]:
    """The recipe of a study's best trial, and a description of that trial.

    Arguments:
        storage: Where the study is.
        name: The name of the study.
    """
    study = _load(storage, name)
    space = study.user_attrs[SPACE]
    trials = study.get_trials(deepcopy=False)
    trial = find_best(trials, space["direction"])
    if trial is None:
        raise RunError(f"expected a finished trial of {name!r}, got none: wait for one")
    done = sum(one.state.name == "COMPLETE" for one in trials)
    words = (
        f"the best of {done} finished trials of {name}: trial {trial.number}, "
        f"{space['metric']} {trial.value:.6g}"
    )
    recipe = make_recipe(space["recipe"], read_choice(space, trial.params))
    optimism = find_optimism(space["metric"], recipe.evaluation.select)
    return recipe, "; ".join(filter(None, (words, optimism)))


def describe_studies(storage: Storage, name: str = "") -> list[dict[str, Any]]:
    """The progress and the best trial of the studies in a storage.

    Arguments:
        storage: Where the studies are.
        name: The name of one study; empty for all.
    """
    import optuna

    with explain_storage(storage.url):
        names = [name] if name else optuna.get_all_study_names(storage.optuna)
    studies = []
    for one in names:
        study = _load(storage, one, strict=bool(name))
        if study is None:
            continue
        space = study.user_attrs[SPACE]
        trials = study.get_trials(deepcopy=False)
        states = Counter(trial.state.name.lower() for trial in trials)
        best = find_best(trials, space["direction"])
        choice = None if best is None else read_choice(space, best.params)
        recipe = make_recipe(space["recipe"], choice or {})
        studies.append(
            {
                "study": one,
                "metric": space["metric"],
                "direction": space["direction"],
                "trials": len(trials),
                "states": dict(states),
                "best": None if best is None else best.value,
                "best_trial": None if best is None else best.number,
                "best_settings": choice,
                "optimistic": find_optimism(space["metric"], recipe.evaluation.select),
                "running": [
                    _describe_running(trial) for trial in trials if trial.state.name == "RUNNING"
                ],
            }
        )
    return studies


def find_best(trials: "Sequence[FrozenTrial]", direction: Direction) -> "FrozenTrial | None":
    """The finished trial with the best value; None without one.

    Arguments:
        trials: All trials of a study.
        direction: Which values are better.
    """
    sign = 1 if direction == "minimize" else -1
    done = [
        (sign * one.value, one.number)
        for one in trials
        if one.state.name == "COMPLETE" and one.value is not None
    ]
    return trials[min(done)[1]] if done else None


def _describe_running(trial: "FrozenTrial") -> dict[str, Any]:
    """The worker of a trial, empty if it is known to have ended, and the step that it is at."""
    owner = trial.user_attrs.get(OWNER)
    known: dict[str, Any] = {"trial": trial.number, "worker": "", "step": None, "steps": None}
    if owner is None:
        return known
    # a process on another machine cannot be looked up here
    if owner["host"] != socket.gethostname() or is_alive(owner["process"]):
        known["worker"] = f"process {owner['process']} on {owner['host']}"
    folder = Path(owner["folder"])
    if (folder / "run.json").exists():
        state = find_state(folder)
        known |= {"step": state.step, "steps": state.steps}
    return known


def _load(storage: Storage, name: str, *, strict: bool = True) -> Any:
    """A study of cayley; None if there is none of that name, unless that is an error."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with explain_storage(storage.url):
        known = optuna.get_all_study_names(storage.optuna)
        if name in known:
            study = optuna.load_study(study_name=name, storage=storage.optuna)
            if SPACE in study.user_attrs:
                return study
    if strict:
        raise RunError(
            f"expected a study in {storage.url}, got {name!r}: there "
            + (f"are {', '.join(known)}" if known else "is none")
        )
    return None
