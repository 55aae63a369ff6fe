"""What is to be done before it is done: the rows of a table, their data and their time."""

import json
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cayley.lab.commands.presence import find_missing
from cayley.lab.recipes import Recipe, data_set, supply
from cayley.lab.wording import counted, duration, time_words

if TYPE_CHECKING:
    from cayley.lab.training import Estimate, RunSettings

__all__ = ["Row", "announce", "missing_data", "show_plan"]


@dataclass(frozen=True)
class Row:
    """What is to be run, by the name that a reader knows, and the folder of each run."""

    name: str
    recipe: Recipe
    folders: list[Path]


def announce(recipe: Recipe, seed: int, options: Namespace) -> None:
    """Say what begins, before torch and the data are read, which takes its time."""
    if not (options.quiet or options.json):
        print(
            f"{recipe.name}, seed {seed}: {recipe.model.name} on {recipe.task.name}, device "
            f"{options.device}, below {options.output}",
            file=sys.stderr,
            flush=True,
        )


def missing_data(recipes: Sequence[Recipe], options: Namespace) -> dict[str, str]:
    """The data sets of recipes that are not there, with what to do about it."""
    if options.tiny:
        return {}
    return find_missing(
        recipes, options.data, download=options.download, check=not options.unchecked
    )


def show_plan(rows: Sequence[Row], settings: "RunSettings", options: Namespace) -> int:
    """Print the rows of a table with what is done, their data, and the time that they will take.

    The time of a row is that of a run of it that is done, or else by a few steps on this machine.

    Arguments:
        rows: What is to be run.
        settings: Machine and data.
        options: Of the command.
    """
    missing = missing_data([row.recipe for row in rows], options)
    if not (options.quiet or options.json):
        print("measuring a few steps of each row", file=sys.stderr, flush=True)
    if not options.json:
        for name, words in missing.items():
            print(f"{name} is missing: {words}")
    plans = []
    for row in rows:
        plans.append(_plan(row, missing, settings))
        if options.json:
            print(json.dumps(plans[-1]))
        else:
            print(_words(plans[-1]), flush=True)
    if not options.json:
        print(_total(plans))
    return 0


def _plan(row: Row, missing: Mapping[str, str], settings: "RunSettings") -> dict[str, Any]:
    from cayley.lab.runs import find_state
    from cayley.lab.training import estimate_run

    states = [find_state(folder) for folder in row.folders if (folder / "run.json").exists()]
    done = [one.folder for one in states if one.state == "done"]
    data = "missing" if data_set(row.recipe.task) in missing else "here"
    plan: dict[str, Any] = {
        "row": row.name,
        "runs": len(row.folders),
        "done": len(done),
        "data": "none" if supply(row.recipe.task) == "none" else data,
        "run_seconds": None,
        "from": "",
    }
    if done:
        return plan | {"run_seconds": _recorded(done[0]), "from": "a run that is done"}
    if plan["data"] == "missing":
        return plan
    found = estimate_run(row.recipe, settings)
    return plan | {"run_seconds": found.seconds, "from": _source(found)}


def _recorded(folder: Path) -> float:
    from cayley.lab.runs import read_result

    result = read_result(folder)
    return result.seconds + result.evaluation_seconds


def _source(found: "Estimate") -> str:
    steps = f"{counted(found.steps, 'step')} of {time_words(found.step_seconds)}"
    times = f"{counted(found.evaluations, 'evaluation')} of {time_words(found.evaluation_seconds)}"
    return f"{steps}, {times}, as measured here"


def _words(plan: Mapping[str, Any]) -> str:
    data = {"none": "", "here": ", data here", "missing": ", data missing"}[plan["data"]]
    head = f"{plan['row']}: {counted(plan['runs'], 'run')}, {plan['done']} done{data}"
    if plan["run_seconds"] is None:
        return f"{head}; time not known without the data"
    return f"{head}; {duration(plan['run_seconds'])} a run ({plan['from']})"


def _total(plans: Sequence[Mapping[str, Any]]) -> str:
    runs = sum(plan["runs"] - plan["done"] for plan in plans)
    known = [plan for plan in plans if plan["run_seconds"] is not None]
    seconds = sum((plan["runs"] - plan["done"]) * plan["run_seconds"] for plan in known)
    rest = len(plans) - len(known)
    unknown = f", without the {counted(rest, 'row')} whose data are missing" if rest else ""
    return f"{counted(runs, 'run')} to do: {duration(seconds)} one after the other{unknown}"
