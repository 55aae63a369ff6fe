"""A plan of runs before they are trained: the rows of a table, their data and their time."""

import json
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cayley.lab.commands.presence import find_missing
from cayley.lab.errors import RecipeError
from cayley.lab.recipes import Recipe, data_set, supply
from cayley.lab.wording import counted, duration, time_words

if TYPE_CHECKING:
    from cayley.lab.runs import MachineFacts
    from cayley.lab.training import Estimate, RunSettings

__all__ = ["Row", "announce", "check_cluster", "is_watched", "missing_data", "show_plan"]

# measuring all of a few hundred rows would take a quarter of an hour
MEASURING_SECONDS = 30.0
# machines that agree in these facts take the same time for a run
LIKE = ("device", "cpu", "cores", "precision", "threads", "processes")


@dataclass(frozen=True)
class Row:
    """A recipe to run, the name that a reader knows it by, and the folder of each run."""

    name: str
    recipe: Recipe
    folders: list[Path]


def announce(recipe: Recipe, seed: int, options: Namespace) -> None:
    """Print what is about to start, since importing torch and reading data take a while."""
    if not (options.quiet or options.json):
        print(
            f"{recipe.name}, seed {seed}: {recipe.model.name} on {recipe.task.name}, device "
            f"{options.device}, below {options.output}",
            file=sys.stderr,
            flush=True,
        )


def check_cluster(options: Namespace) -> None:
    """Raise if there are options for a cluster, but no cluster."""
    if options.ray is None and vars(options).get("slurm") is None:
        for name, given in {
            "--gpus-per-run": options.gpus_per_run,
            "--fetch": options.fetch,
        }.items():
            if given:
                raise RecipeError(f"expected {name} with a cluster, got none: add --ray ADDRESS")


def is_watched(options: Namespace) -> bool:
    """Whether somebody is at a terminal who wants to see how it goes."""
    return sys.stderr.isatty() and not (options.quiet or options.json)


def missing_data(recipes: Sequence[Recipe], options: Namespace) -> dict[str, str]:
    """The missing data sets of recipes, with what to do about it."""
    if options.tiny:
        return {}
    return find_missing(
        recipes, options.data, download=options.download, check=not options.unchecked
    )


def show_plan(rows: Sequence[Row], settings: "RunSettings", options: Namespace) -> int:
    """Print the rows of a table: what is done, their data, and the time that they will take.

    The time of a row is that of a finished run of it on a machine like this one or, without one, an
    estimate from a few steps of this row, or of a similar one.

    Arguments:
        rows: The rows to run.
        settings: Machine and data.
        options: The options of the command.
    """
    from cayley.lab.runs import describe_machine

    # a missing GPU is said before anything is measured
    here = describe_machine(settings.machine, settings.machine.engine().device)
    if not (options.quiet or options.json):
        print(
            f"{counted(len(rows), 'row')}: measuring steps for about {MEASURING_SECONDS:.0f} "
            "seconds; the remaining rows are estimated by their operations",
            file=sys.stderr,
            flush=True,
        )
    missing = missing_data([row.recipe for row in rows], options)
    if not options.json:
        for name, words in missing.items():
            print(f"{name} is missing: {words}", flush=True)
    plans = _plan(rows, missing, settings, here)
    for plan in plans:
        print(json.dumps(plan) if options.json else _words(plan))
    if not options.json:
        print(_total(plans))
    return 0


def _plan(
    rows: Sequence[Row],
    missing: Mapping[str, str],
    settings: "RunSettings",
    here: "MachineFacts",
) -> list[dict[str, Any]]:
    from cayley.lab.errors import LabError
    from cayley.lab.training import estimate_runs

    done = [_done(row) for row in rows]
    timed = [_timed(folders, here) for folders in done]
    absent = [data_set(row.recipe.task) in missing for row in rows]
    wanted = [k for k in range(len(rows)) if not absent[k]]
    found = estimate_runs(
        [rows[k].recipe for k in wanted],
        settings,
        seconds=MEASURING_SECONDS,
        known={j: seconds for j, k in enumerate(wanted) if (seconds := timed[k]) is not None},
    )
    plans = []
    for k, row in enumerate(rows):
        data = "missing" if absent[k] else "here"
        plan: dict[str, Any] = {
            "row": row.name,
            "runs": len(row.folders),
            "done": len(done[k]),
            "data": "none" if supply(row.recipe.task) == "none" else data,
            "run_seconds": None,
            "from": "time not known without the data",
        }
        if (seconds := timed[k]) is not None:
            plan |= {"run_seconds": sum(seconds), "from": "a run that is done"}
        elif k in wanted:
            one = found[wanted.index(k)]
            if isinstance(one, LabError):
                plan["from"] = f"time not known: {one}"
            else:
                like = "" if one.like is None else rows[wanted[one.like]].name
                plan |= {"run_seconds": one.seconds, "from": _source(one, like)}
        plans.append(plan)
    return plans


def _done(row: Row) -> list[Path]:
    from cayley.lab.runs import find_state

    states = [find_state(folder) for folder in row.folders if (folder / "run.json").exists()]
    return [one.folder for one in states if one.state == "done"]


def _timed(folders: Sequence[Path], here: "MachineFacts") -> tuple[float, float] | None:
    """The seconds of training and of evaluation of the first run on a machine like this one."""
    from cayley.lab.runs import read_result, read_run

    for folder in folders:
        description, _ = read_run(folder)
        there = description.machine
        same = all(getattr(here, name) == getattr(there, name) for name in LIKE)
        if same and description.timed_alone:
            result = read_result(folder)
            return result.seconds, result.evaluation_seconds
    return None


def _source(found: "Estimate", like: str) -> str:
    steps = f"{counted(found.steps, 'step')} of {time_words(found.step_seconds)}"
    times = f"{counted(found.evaluations, 'evaluation')} of {time_words(found.evaluation_seconds)}"
    how = f"by its operations and the time of {like}" if like else "as measured here"
    return f"{steps}, {times}, {how}"


def _words(plan: Mapping[str, Any]) -> str:
    data = {"none": "", "here": ", data here", "missing": ", data missing"}[plan["data"]]
    head = f"{plan['row']}: {counted(plan['runs'], 'run')}, {plan['done']} done{data}"
    if plan["run_seconds"] is None:
        return f"{head}; {plan['from']}"
    return f"{head}; {duration(plan['run_seconds'])} a run ({plan['from']})"


def _total(plans: Sequence[Mapping[str, Any]]) -> str:
    runs = sum(plan["runs"] - plan["done"] for plan in plans)
    known = [plan for plan in plans if plan["run_seconds"] is not None]
    seconds = sum((plan["runs"] - plan["done"]) * plan["run_seconds"] for plan in known)
    rest = len(plans) - len(known)
    if not known:
        return f"{counted(runs, 'run')} to do"
    unknown = f", without the {counted(rest, 'row')} whose time is not known" if rest else ""
    return f"{counted(runs, 'run')} to do: {duration(seconds)} one after the other{unknown}"
