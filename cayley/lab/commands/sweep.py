"""The command ``cayley sweep``: search settings, with any number of workers."""

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cayley.lab.commands.planning import check_cluster, is_watched, missing_data
from cayley.lab.commands.work_options import run_settings, shared_arguments
from cayley.lab.errors import DataError, RecipeError, RunError
from cayley.lab.wording import counted, duration, short_number

if TYPE_CHECKING:
    from cayley.lab.sweeps import Space, Storage, Sweep
    from cayley.lab.sweeps.worker import FinishedTrial
    from cayley.lab.training import Reporter

__all__ = ["sweep"]


def sweep(options: Namespace) -> int:
    """Search the settings of a recipe over a space, a TOML file or a name from --list.

    Every trial is an ordinary run, below --output. The same command on any number of machines adds
    workers to the study, which has --trials trials in all. If a worker is killed, nothing is lost:
    the next free worker continues its trial from the checkpoint. With --ray, the --jobs workers
    are tasks of a Ray cluster, whose nodes see --output and the storage.

    cayley sweep best STUDY prints the best settings as a recipe; cayley sweep status shows what is
    done.
    """
    if options.list:
        return _list(options)
    if options.space is None:
        raise RecipeError(
            "expected a space, or best or status with the name of a study, got none: see cayley "
            "sweep --list"
        )
    actions = {"best": _best, "status": _status}
    if options.space in actions:
        return actions[options.space](options)
    if options.name is not None:
        raise RecipeError(f"expected one space, got also {options.name!r}: --study names the study")
    return _search(options)


def _list(options: Namespace) -> int:
    from cayley.lab.sweeps import spaces

    for one in spaces().values():
        keys = [parameter.key for parameter in one.parameters]
        if options.json:
            known = {"space": one.name, "title": one.title, "source": one.source, "keys": keys}
            print(json.dumps(known | {"recipe": one.recipe, "metric": one.metric}))
        else:
            print(f"{one.name}: {one.title}\n  {one.recipe}, {one.metric}, over {', '.join(keys)}")
    return 0


def _best(options: Namespace) -> int:
    from cayley.lab.recipes import write_recipe
    from cayley.lab.sweeps import best_recipe

    if options.name is None:
        raise RecipeError("expected the name of a study: cayley sweep best STUDY")
    recipe, words = best_recipe(_storage(options, new=False), options.name)
    print(f"# {words}\n{write_recipe(recipe)}", end="")
    return 0


def _status(options: Namespace) -> int:
    from cayley.lab.sweeps import describe_studies

    for one in describe_studies(_storage(options, new=False), options.name or ""):
        if options.json:
            print(json.dumps(one))
            continue
        states = ", ".join(f"{count} {state}" for state, count in one["states"].items())
        print(f"{one['study']}: {counted(one['trials'], 'trial')}" + (f", {states}" * bool(states)))
        if one["best"] is not None:
            value, settings = short_number(one["best"]), _settings_words(one["best_settings"])
            print(f"  best {one['metric']} {value}, trial {one['best_trial']}: {settings}")
            if one["optimistic"]:
                print(f"  {one['optimistic']}")
        for running in one["running"]:
            place = running["worker"] or "stopped, to be continued by the next worker"
            step = "" if running["step"] is None else f", step {running['step']}"
            of = "" if running["steps"] is None else f" of {running['steps']}"
            print(f"  trial {running['trial']}: {place}{step}{of}")
    return 0


def _search(options: Namespace) -> int:
    from cayley.lab.sweeps import find_space

    check_cluster(options)
    if options.fetch:
        raise RecipeError(
            "expected an output folder that all workers of a sweep see, got --fetch: leave it out"
        )
    space = find_space(options.space).choose(options.set)
    if options.jobs > 1 or options.ray is not None:
        return _search_side_by_side(options, space)
    if not (options.quiet or options.json):
        print(f"{space.name}: checking the space", file=sys.stderr, flush=True)
    from cayley.lab.runs import Interrupts
    from cayley.lab.sweeps.worker import work

    found = _join(options, space)

    def tell(trial: "FinishedTrial") -> None:
        _tell(trial, found, options)

    with Interrupts() as interrupts:
        work(
            found,
            run_settings(options),
            interrupts=interrupts,
            tell=tell,
            reporter=lambda folder: _reporter(options, folder),
        )
    _conclude(found, options)
    return 0


def _join(options: Namespace, space: "Space") -> "Sweep":
    """The study of a space, after everything that can be checked has been checked."""
    from cayley.lab.sweeps import join
    from cayley.lab.sweeps.checking import check_space, find_direction
    from cayley.lab.training import RunSettings, build_task

    base = space.base(tiny=options.tiny)
    optimism = check_space(space, tiny=options.tiny)
    if optimism and not (options.quiet or options.json):
        print(f"{space.name}: {optimism}", file=sys.stderr, flush=True)
    missing = missing_data([base], options)
    if missing:
        raise DataError(" ".join(missing.values()))
    return join(
        space,
        _storage(options, new=True),
        options.output,
        name=options.study or "",
        trials=options.trials or 0,
        direction=find_direction(space, base, build_task(base.task, RunSettings(tiny=True))),
        tiny=options.tiny,
        precision=options.precision,
    )


def _search_side_by_side(options: Namespace, space: "Space") -> int:
    """Start several workers, each in its own process here, or as a task of a cluster."""
    from cayley.lab.commands.cluster import choose_share, on_nodes, run_on_cluster
    from cayley.lab.commands.queue import Queue, Work
    from cayley.lab.commands.side_by_side import child_command, run_side_by_side
    from cayley.lab.runs import Interrupts

    share = None if options.ray is None else choose_share(options)
    if share is not None:
        options = on_nodes(options)
        if Path(options.space).exists():
            options.space = str(Path(options.space).resolve())
    # checked before any process starts, so that an error is printed only once
    found = _join(options, space)
    arguments = _worker_arguments(options)
    works = [
        Work(f"worker {number}", space.name, None, child_command(arguments))
        for number in range(1, options.jobs + 1)
    ]

    def say(words: str) -> None:
        if not (options.quiet or options.json):
            print(words, file=sys.stderr, flush=True)

    def progress(queue: Queue) -> str:
        return _progress(found)

    file = found.folder / "queue.json"
    if share is not None:
        code = run_on_cluster(
            works, options.ray, share, file, tell=say, progress=progress, live=is_watched(options)
        )
    else:
        with Interrupts() as interrupts:
            queue = Queue(works, file)
            code = run_side_by_side(
                queue,
                options.jobs,
                interrupts,
                tell=say,
                progress=progress,
                live=is_watched(options),
            )
    _conclude(found, options)
    return code


def _worker_arguments(options: Namespace) -> list[str]:
    """The command line of a worker."""
    arguments = ["sweep", options.space, *shared_arguments(options)]
    for name in ("storage", "study", "trials"):
        if getattr(options, name) is not None:
            arguments += [f"--{name}", str(getattr(options, name))]
    return arguments + (["--set", *options.set] if options.set else [])


def _reporter(options: Namespace, folder: Path) -> "Reporter | None":
    from cayley.lab import training

    if not options.tensorboard:
        return None
    training.check_tensorboard()
    return training.TensorBoard(training.Quiet(), folder)


def _storage(options: Namespace, *, new: bool) -> "Storage":
    """The storage from the options, or else the journal beside the runs."""
    from cayley.lab.sweeps import default_url, open_storage

    url = options.storage or default_url(options.output)
    files = [url.removeprefix(kind) for kind in ("journal://", "sqlite:///") if kind in url]
    if not (new or all(Path(file).exists() for file in files)):
        raise RunError(
            f"expected sweeps in {url}, got none: give the same --output or --storage as to cayley "
            "sweep"
        )
    return open_storage(url)


def _settings_words(choice: dict[str, Any]) -> str:
    from cayley.lab.sweeps import write_setting

    return " ".join(
        write_setting(key, float(short_number(value)) if isinstance(value, float) else value)
        for key, value in choice.items()
    )


def _tell(trial: "FinishedTrial", found: "Sweep", options: Namespace) -> None:
    """Print the outcome of a trial."""
    outcome = trial.outcome
    if options.json:
        known = {"trial": trial.number, "state": outcome.state, "value": outcome.value}
        more = {"settings": trial.choice, "reason": outcome.reason, "folder": str(trial.folder)}
        print(json.dumps(known | more | {"seconds": round(trial.seconds, 3)}), flush=True)
    elif not options.quiet:
        value = (
            "" if outcome.value is None else f"{found.space.metric} {short_number(outcome.value)}"
        )
        words = ", ".join(filter(None, (value, outcome.reason, _settings_words(trial.choice))))
        print(f"trial {trial.number}: {words}, {duration(trial.seconds)}", flush=True)


def _progress(found: "Sweep") -> str:
    """The progress of a study, in words."""
    from cayley.lab.sweeps import describe_studies

    (one,) = describe_studies(found.storage, found.name)
    done = one["trials"] - one["states"].get("running", 0) - one["states"].get("waiting", 0)
    best = "" if one["best"] is None else f", best {one['metric']} {short_number(one['best'])}"
    return f"{done} of {found.trials} trials done{best}"


def _conclude(found: "Sweep", options: Namespace) -> None:
    """Print the best trial, and where it is."""
    from cayley.lab.sweeps import describe_studies

    if options.quiet or options.json:
        return
    (one,) = describe_studies(found.storage, found.name)
    if one["best"] is None:
        print(
            f"{found.name}: no trial has finished; cayley sweep status{_place(options)} lists them"
        )
        return
    print(
        f"{found.name}: best {one['metric']} {short_number(one['best'])} of "
        f"{counted(found.trials, 'trial')}, trial {one['best_trial']} below {found.folder}; as a "
        f"recipe: cayley sweep best {found.name}{_place(options)}"
    )
    if one["optimistic"]:
        print(f"{found.name}: {one['optimistic']}")


def _place(options: Namespace) -> str:
    """The options with which another command finds the same study."""
    if options.storage:
        return " --storage …"
    return "" if options.output == Path("runs") else f" -o {options.output}"
