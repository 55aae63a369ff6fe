"""The commands that train, reproduce, resume and evaluate."""

import itertools
import json
import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cayley.lab.commands.listing import describe_recipe
from cayley.lab.commands.planning import (
    Row,
    announce,
    check_cluster,
    is_watched,
    missing_data,
    show_plan,
)
from cayley.lab.commands.sizing import fit_sizes
from cayley.lab.commands.work_options import run_settings, shared_arguments
from cayley.lab.errors import DataError, Interrupted, LabError, RecipeError, RunError
from cayley.lab.processes import find_processes
from cayley.lab.recipes import Recipe, Seed, data_set, differences, find_packaged, find_recipe
from cayley.lab.recipes.views import find_curves, wanted_views
from cayley.lab.settings import convert
from cayley.lab.wording import counted, duration, short_number

if TYPE_CHECKING:
    from cayley.lab.commands.queue import Work
    from cayley.lab.runs import RunResult
    from cayley.lab.training import Reporter, RunSettings

__all__ = ["check_same_run", "evaluate", "grid", "print_result", "reproduce", "resume", "train"]

SOUND = {"segsnr_db": "SegSNR in dB", "stoi": "STOI", "pesq": "PESQ"}


def train(options: Namespace) -> int:
    """Train a recipe, in a separate folder for each seed.

    With --seeds, finished runs are skipped and unfinished ones continued; without it, a folder that
    already contains a run is refused. With --extend, finished runs are made longer.

    With --together, all runs are trained in one process, and their networks take their steps side
    by side. Each run has its own folder as if it were alone, and unfinished runs are continued.
    Settings may then have several values, --set optim.lr=1e-3,3e-4, and there is a run
    for every combination of them and every seed.

    With --devices, every batch is shared among that many processes, each with its own device, and
    the numbers are those of one device. torchrun --nproc-per-node N -m cayley train does the same,
    also on several machines; it continues a run that was started before.
    """
    entry = find_recipe(options.recipe)
    _check_devices(options)
    if options.together and options.extend:
        raise RecipeError("--extend: expected it without --together, which trains to the end")
    jobs: list[_Job] = []
    base = entry.recipe(options.variant, tiny=options.tiny)
    if (packaged := find_packaged(base)) is not None:
        # an edited copy must not have the folders of the original
        base = packaged.recipe(base.variant, tiny=options.tiny)
    several = grid(options.set)
    for chosen in several if options.together else [options.set]:
        try:
            changes = fit_sizes(entry, chosen, options.variant, options.task)
            recipe = entry.recipe(options.variant, changes, options.task, tiny=options.tiny)
        except RecipeError as error:
            if options.together or len(several) == 1:
                raise
            raise RecipeError(f"{error}; several values need --together") from error
        implied = entry.implied(options.variant, changes, options.task, tiny=options.tiny)
        _say(implied, options)
        overrides = [*changes, *([f"task={options.task}"] if options.task else [])]
        first = convert(recipe.seed if options.seed is None else options.seed, Seed, "--seed")
        seeds = _seeds(first, options.seeds or 1)
        asked = ("--task", options.task) if options.task else ()
        source = (options.recipe, "--variant", options.variant, *asked, *_set(changes))
        jobs += [_Job(recipe, base, seed, tuple(overrides), source) for seed in seeds]
    if options.together:
        if options.jobs > 1:
            raise RecipeError("expected --together or --jobs, got both: choose one")
        # a value that was given twice makes one run
        distinct = {_folder(job, options): job for job in jobs}
        return _work_together([*distinct.values()], options)
    if options.jobs > 1:
        if options.extend:
            raise RecipeError(
                "expected --jobs without --extend, got both: extend runs one after the other"
            )
        return _work_side_by_side(jobs, options)
    again = options.seeds is not None or bool(options.extend)
    processes = find_processes()
    if options.devices > 1 and not processes.several:
        from cayley.lab.commands.launching import launch

        for job in jobs:
            _check_start(job, options, again)
        return launch(options.command_line, options.devices)
    # under torchrun, a run that was killed is continued by the same command
    again = again or processes.several
    return _work(jobs, options, again=again, extend=options.extend)


def grid(settings: Sequence[str]) -> list[list[str]]:
    """Every combination of settings, of which some have several values, separated by commas.

    Example:
        >>> grid(["optim.lr=1e-3,3e-4", "model.hidden=[5, 4]"])
        [['optim.lr=1e-3', 'model.hidden=[5, 4]'], ['optim.lr=3e-4', 'model.hidden=[5, 4]']]
    """
    choices = []
    for text in settings:
        key, equals, values = text.partition("=")
        # commas inside a list, a table or a string do not separate values
        several = not equals or any(mark in values for mark in "[]{}\"'")
        choices.append([text] if several else [f"{key}={one}" for one in values.split(",")])
    return [[*chosen] for chosen in itertools.product(*choices)]


def _seeds(first: int, count: int) -> range:
    """So many seeds, of which the last is one too."""
    return range(first, convert(first + count - 1, Seed, "--seeds: the last seed") + 1)


def reproduce(options: Namespace) -> int:
    """Train every curve of a published figure, or every row of a published table.

    Each has as many seeds as in the paper, and finished runs are skipped. cayley list --views shows
    the names. With --jobs, several runs are trained side by side, and one that dies is restarted
    from its checkpoint. With --budget, all of them stop in time, and the same command continues
    them later. queue.json in the output folder shows what is done, running and to do.

    With --ray, every run is a task of a Ray cluster, and continues on another node if its node
    dies. With --slurm, nothing is run: the script of a Slurm job array is written, with one run per
    index.
    """
    if bool(options.table) == options.all:
        got = "both" if options.all else "neither"
        raise RecipeError(
            f"expected the names of figures or tables, or --all, got {got}: see list --views"
        )
    check_cluster(options)
    jobs = []
    said: list[str] = []
    views = options.table or wanted_views()
    if options.dry_run:
        # reading hundreds of recipes, and importing torch, takes seconds
        _say([f"reading the rows of {counted(len(views), 'view')}"], options)
    # several figures may show the same run
    curves = {
        (curve.recipe, curve.variant, curve.set): curve
        for view in views
        for curve in find_curves(view)
    }
    for curve in curves.values():
        entry = find_recipe(curve.recipe)
        variant = curve.variant if options.variant == "paper" else options.variant
        if variant in entry.variants:
            changes = fit_sizes(entry, [*curve.set, *options.set], variant)
            recipe = entry.recipe(variant, changes, tiny=options.tiny)
            base = entry.recipe(variant, tiny=options.tiny)
            said += entry.implied(variant, changes, tiny=options.tiny)
            seeds = _seeds(recipe.seed, options.seeds or recipe.seeds)
            source = (curve.recipe, "--variant", variant, *_set(changes))
            jobs += [_Job(recipe, base, seed, tuple(changes), source) for seed in seeds]
    if not jobs:
        raise RecipeError(
            f"{', '.join(options.table)}: expected a row with the variant {options.variant}"
        )
    _say(said, options)
    if options.dry_run:
        return _plan(jobs, options)
    if options.slurm is not None:
        return _write_array(jobs, options)
    if options.ray is not None:
        return _work_on_cluster(jobs, options)
    if options.jobs > 1 or options.budget is not None:
        return _work_side_by_side(jobs, options, options.budget)
    return _work(jobs, options, again=True)


def resume(options: Namespace) -> int:
    """Continue a run where it stopped; the final numbers are those of an uninterrupted run.

    With --extend, a finished run is made longer; its numbers are those of a run that was longer
    from the start. If its last evaluation is between two regular ones, it is kept and may be
    selected; the report says so. A run that stopped early cannot be extended, nor one whose
    schedule is OneCycleLR.

    A recipe.toml that was edited after the start is refused, as is a task or model of your own.
    With --continue-with, the run continues with it, at the learning rates that the recipe has at
    this step; the report shows what was changed, and when.
    """
    _check_devices(options)
    if options.devices > 1 and not find_processes().several:
        from cayley.lab.commands.launching import launch

        return launch(options.command_line, options.devices)
    if not (options.quiet or options.json):
        print(f"resuming {options.run_folder}", file=sys.stderr, flush=True)
    from cayley.lab import training
    from cayley.lab.runs import Interrupts, read_run

    # one that is only shown may be without weights or data, such as an archive
    shown = (options.run_folder / "result.json").exists() and not options.extend
    with Interrupts() as interrupts:
        result = training.resume(
            options.run_folder,
            device=options.device or "",
            data=options.data,
            reporter=_reporter(options, options.run_folder),
            interrupts=interrupts,
            checkpoint_seconds=options.checkpoint_every,
            extend=options.extend,
            continue_with=options.continue_with,
            trust=options.trust,
        )
    if find_processes().first and not shown:
        _write_samples(options.run_folder, read_run(options.run_folder)[1], options)
    if not (options.quiet or options.json):
        print_result(options.run_folder, result)
    return 0


def evaluate(options: Namespace) -> int:
    """Score the weights of a run, which need not be finished; then a line says so."""
    from cayley.lab import training
    from cayley.lab.runs import find_state

    run = training.restore_run(
        options.run_folder,
        weights=options.weights,
        split=options.split,
        device=options.device or "",
        data=options.data,
        trust=options.trust,
    )
    scores = training.score_run(run, options.split, audio=options.audio)
    found = find_state(options.run_folder)
    if options.json:
        facts = {"split": options.split, "weights": options.weights, "step": run.step}
        print(json.dumps(facts | {"state": found.state, "scores": scores}))
    else:
        if found.state == "damaged":
            print(f"{found.message}; {run.weights}", file=sys.stderr)
        elif found.state != "done":
            place = f"step {found.step} of {found.steps}"
            print(f"not finished ({found.state}): {place}; {run.weights}", file=sys.stderr)
        for name, value in scores.items():
            print(f"{options.split} {name} {value:.6g}")
    return 0


def _check_devices(options: Namespace) -> None:
    """Raise unless --devices is compatible with the other options, and with torchrun."""
    processes = find_processes()
    if processes.several and options.devices not in (0, processes.count):
        raise RecipeError(
            f"expected --devices {processes.count}, as torchrun has started so many processes, got "
            f"{options.devices}: leave --devices out"
        )
    if options.devices <= 1 and not processes.several:
        return
    others = {
        "together": "trains several runs on one device",
        "graph": "records the steps of one device",
    }
    for name, what in others.items():
        if vars(options).get(name):
            raise RecipeError(f"expected --devices without --{name}, which {what}: choose one")
    if vars(options).get("jobs", 1) > 1:
        raise RecipeError(
            "expected --devices or --jobs, got both: share one run among processes, or train one "
            "run in each"
        )


def _check_start(job: "_Job", options: Namespace, again: bool) -> None:
    """Raise unless several processes can start a run; called before they are started."""
    from cayley.lab.training import check_batch

    check_batch(job.recipe.training.batch, options.devices)
    folder = _folder(job, options)
    if not again and (folder / "run.json").exists():
        raise RunError(
            f"expected a folder without a run, got {folder}: continue with cayley resume {folder} "
            f"--devices {options.devices}, or choose another --output"
        )


@dataclass(frozen=True)
class _Job:
    recipe: Recipe
    base: Recipe
    seed: int
    overrides: tuple[str, ...]
    # the equivalent arguments of cayley train, except for the seed
    source: tuple[str, ...]


def _set(changes: Sequence[str]) -> tuple[str, ...]:
    return ("--set", *changes) if changes else ()


def _plan(jobs: list[_Job], options: Namespace) -> int:
    """Print what there is to do, and do nothing."""
    rows: dict[str, Row] = {}
    for job in jobs:
        # rows of one recipe may differ in settings of their own
        own = [text for text in job.overrides if text not in options.set]
        name = " ".join((job.recipe.name, *own))
        rows.setdefault(name, Row(name, job.recipe, [])).folders.append(_folder(job, options))
    return show_plan(list(rows.values()), run_settings(options), options)


def _folder(job: _Job, options: Namespace) -> Path:
    from cayley.lab import training

    return training.run_folder(
        options.output,
        job.recipe,
        job.seed,
        job.base,
        tiny=options.tiny,
        precision=options.precision,
    )


def _leave_out(jobs: list[_Job], options: Namespace) -> list[_Job]:
    """The jobs whose data are there; print once what is missing for the others.

    Runs that were started before are kept, since they record where their data are.
    """
    begun = [job for job in jobs if (_folder(job, options) / "run.json").exists()]
    missing = missing_data([job.recipe for job in jobs if job not in begun], options)
    left = [job for job in jobs if job in begun or data_set(job.recipe.task) not in missing]
    if not left:
        raise DataError(" ".join(missing.values()))
    for name, words in missing.items():
        count = sum(data_set(job.recipe.task) == name and job not in begun for job in jobs)
        print(f"{counted(count, 'run')} left out, for lack of {name}: {words}", file=sys.stderr)
    return left


def _work(jobs: list[_Job], options: Namespace, *, again: bool, extend: int = 0) -> int:
    """Do jobs one after the other; among several, one that fails does not stop the rest.

    Arguments:
        jobs: The runs to train.
        options: The options of the command.
        again: Whether to continue runs that exist already.
        extend: By how many steps or epochs to make finished runs longer.

    Returns:
        The exit code: that of the first failure.
    """
    announce(jobs[0].recipe, jobs[0].seed, options)
    from cayley.lab import training
    from cayley.lab.runs import Interrupts

    left = _leave_out(jobs, options)
    code = 0 if len(left) == len(jobs) else DataError.code
    results: dict[str, list[RunResult]] = {}
    with Interrupts() as interrupts:
        for job in left:
            folder = _folder(job, options)
            reporter = _reporter(options, folder)
            settings = run_settings(options, job.overrides)
            try:
                if extend or (again and (folder / "run.json").exists()):
                    check_same_run(folder, job.recipe, settings, job.seed, any_length=bool(extend))
                    result = training.resume(
                        folder,
                        device="" if options.device == "auto" else options.device,
                        data=options.data,
                        reporter=reporter,
                        interrupts=interrupts,
                        checkpoint_seconds=options.checkpoint_every,
                        extend=extend,
                        # the user has just asked for this recipe
                        trust=True,
                    )
                else:
                    result = training.train(
                        job.recipe,
                        folder,
                        seed=job.seed,
                        settings=settings,
                        reporter=reporter,
                        interrupts=interrupts,
                    )
            except LabError as error:
                # among several processes, this one may be the only one that fails
                if len(jobs) == 1 or isinstance(error, Interrupted) or find_processes().several:
                    raise
                print(f"{job.recipe.name}, seed {job.seed}: {error}", file=sys.stderr)
                code = code or error.code
                continue
            results.setdefault(job.recipe.name, []).append(result)
            if find_processes().first:
                _write_samples(folder, job.recipe, options)
            if not (options.quiet or options.json):
                print_result(folder, result)
    _print_spreads(results, options)
    return code


def _work_together(jobs: list[_Job], options: Namespace) -> int:
    """Do jobs side by side; one that fails does not stop the rest.

    Returns:
        The exit code: that of the first failure.
    """
    announce(jobs[0].recipe, jobs[0].seed, options)
    from cayley.lab import training
    from cayley.lab.runs import Interrupts, RunResult

    left = _leave_out(jobs, options)
    code = 0 if len(left) == len(jobs) else DataError.code
    folders = [_folder(job, options) for job in left]
    reporters = training.choose_reporters(options.quiet, options.json, folders)
    if options.tensorboard:
        training.check_tensorboard()
        pairs = zip(reporters, folders, strict=True)
        reporters = [training.TensorBoard(reporter, folder) for reporter, folder in pairs]
    members = [
        training.Member(job.recipe, folder, job.seed, _own_settings(job, folder, options), reporter)
        for job, folder, reporter in zip(left, folders, reporters, strict=True)
    ]
    with Interrupts() as interrupts:
        found = training.train_together(members, interrupts=interrupts)
    results: dict[str, list[RunResult]] = {}
    for member, result in zip(members, found, strict=True):
        if not isinstance(result, RunResult):
            print(f"{member.folder}: {result}", file=sys.stderr)
            code = code or result.code
            continue
        kind = " ".join((member.recipe.name, *member.settings.overrides))
        results.setdefault(kind, []).append(result)
        _write_samples(member.folder, member.recipe, options)
        if not (options.quiet or options.json):
            print_result(member.folder, result)
    _print_spreads(results, options)
    return code


def _own_settings(job: _Job, folder: Path, options: Namespace) -> "RunSettings":
    """The settings of a new run, or those of an existing run if it is the requested one."""
    from cayley.lab import training
    from cayley.lab.runs import read_run

    settings = run_settings(options, job.overrides)
    if not (folder / "run.json").exists():
        return settings
    check_same_run(folder, job.recipe, settings, job.seed)
    device = "" if options.device == "auto" else options.device
    found = training.restore_settings(read_run(folder)[0], device, options.data)
    return replace(found, checkpoint_seconds=options.checkpoint_every)


def _print_spreads(results: "dict[str, list[RunResult]]", options: Namespace) -> None:
    """Print mean and standard deviation of recipes with several seeds."""
    if not (options.quiet or options.json):
        for name, several in results.items():
            if len(several) > 1:
                print(f"{name}, {len(several)} seeds: {describe_spread(several)}")


def _work_side_by_side(jobs: list[_Job], options: Namespace, seconds: float | None = None) -> int:
    """Do each job in its own process, several at a time, and stop all after a time."""
    from cayley.lab.commands.queue import Queue
    from cayley.lab.commands.side_by_side import run_side_by_side
    from cayley.lab.runs import Interrupts

    left = _leave_out(jobs, options)
    queue = Queue(_works_to_do(left, options), options.output / "queue.json")
    with Interrupts() as interrupts:
        code = run_side_by_side(
            queue,
            options.jobs,
            interrupts,
            seconds=seconds,
            tell=lambda words: _say([words], options),
            live=is_watched(options),
        )
    _print_results(queue.works, options)
    return code or (0 if len(left) == len(jobs) else DataError.code)


def _work_on_cluster(jobs: list[_Job], options: Namespace) -> int:
    """Do jobs as tasks of a Ray cluster."""
    from cayley.lab.commands.cluster import choose_share, on_nodes, run_on_cluster

    if options.jobs > 1:
        raise RecipeError("expected --ray or --jobs, got both: the cluster decides how many run")
    share = choose_share(options)
    options = on_nodes(options)
    left = _leave_out(jobs, options)
    works = _works_to_do(left, options)
    code = run_on_cluster(
        works,
        options.ray,
        share,
        options.output / "queue.json",
        fetch=options.fetch,
        seconds=options.budget,
        tell=lambda words: _say([words], options),
        live=is_watched(options),
    )
    _print_results(works, options)
    return code or (0 if len(left) == len(jobs) else DataError.code)


def _write_array(jobs: list[_Job], options: Namespace) -> int:
    """Write the script of a Slurm job array, with one job per index."""
    from cayley.lab.commands.files import absolute_paths, write_file
    from cayley.lab.commands.slurm import array_script

    if options.budget is not None or options.fetch:
        raise RecipeError(
            "expected --slurm without --budget and --fetch: sbatch --time limits the time of a "
            "run, and all nodes see the output folder"
        )
    gpus = int(options.gpus_per_run)
    if gpus != options.gpus_per_run:
        raise RecipeError(
            f"expected a whole number of GPUs for --slurm, got --gpus-per-run "
            f"{options.gpus_per_run:g}: choose 1, or 0 and request a share with options of sbatch"
        )
    options = absolute_paths(options)
    left = _leave_out(jobs, options)
    works = _works(left, options)
    script = array_script(
        [work.command for work in works],
        options.output,
        at_a_time=options.jobs if options.jobs > 1 else 0,
        gpus=gpus,
        cpus=max(1, options.threads),
    )
    # Slurm does not create the folder for the output of jobs
    options.output.mkdir(parents=True, exist_ok=True)
    write_file(options.slurm, script.encode())
    start = shlex.join(("sbatch", str(options.slurm)))
    _say([f"{options.slurm}: {counted(len(works), 'run')}; start them: {start}"], options)
    return 0 if len(left) == len(jobs) else DataError.code


def _print_results(works: "Sequence[Work]", options: Namespace) -> None:
    """Print the results of runs that other processes have made, if the output is JSON."""
    from cayley.lab import training
    from cayley.lab.runs import read_result

    if options.json:
        done = [work.folder for work in works if work.code == 0 and work.folder is not None]
        reporters = training.choose_reporters(options.quiet, options.json, done)
        for folder, reporter in zip(done, reporters, strict=True):
            reporter.end(read_result(folder))


def _works(jobs: list[_Job], options: Namespace) -> "list[Work]":
    """The command line of each job, without duplicates."""
    from cayley.lab.commands.queue import Work
    from cayley.lab.commands.side_by_side import child_command

    works = {}
    for job in jobs:
        folder = _folder(job, options)
        name = str(folder.relative_to(options.output))
        arguments = ("train", *job.source, "--seed", str(job.seed), "--seeds", "1")
        command = child_command((*arguments, *shared_arguments(options)))
        works[name] = Work(name, job.recipe.name, folder, command)
    return list(works.values())


def _works_to_do(jobs: list[_Job], options: Namespace) -> "list[Work]":
    """The same; those that are done have an exit code, and need no process to say so."""
    done = {folder for job in jobs if _is_done(job, folder := _folder(job, options), options)}
    works = _works(jobs, options)
    for work in works:
        work.code = 0 if work.folder in done else None
    if done:
        _say([f"{counted(len(done), 'run')} done before"], options)
    return works


def _is_done(job: _Job, folder: Path, options: Namespace) -> bool:
    """Whether the run of a job is finished, and is the requested one.

    If it is not as it should be, it gets a process, which will say why.
    """
    from cayley.lab.runs import read_result
    from cayley.lab.training import has_samples

    if not (folder / "result.json").exists():
        return False
    try:
        check_same_run(folder, job.recipe, run_settings(options, job.overrides), job.seed)
        read_result(folder)
    except LabError:
        return False
    return not has_samples(job.recipe.task.name) or any(folder.glob("sample*"))


def _reporter(options: Namespace, folder: Path) -> "Reporter":
    """What shows the progress of the run in a folder."""
    from cayley.lab import training

    reporter = training.choose_reporter(options.quiet, options.json)
    if not options.tensorboard:
        return reporter
    training.check_tensorboard()
    return training.TensorBoard(reporter, folder)


def _write_samples(folder: Path, recipe: Recipe, options: Namespace) -> None:
    """Write samples of the network of a finished run, if its task has text or sound."""
    from cayley.lab import training

    if training.has_samples(recipe.task.name) and not [*folder.glob("sample*")]:
        device = "" if options.device in (None, "auto") else options.device
        training.write_samples(folder, device=device, data=options.data, trust=True)


def _say(lines: list[str], options: Namespace) -> None:
    """Print each line once, unless the output is quiet or JSON."""
    if not (options.quiet or options.json):
        for line in dict.fromkeys(lines):
            print(line, file=sys.stderr)


def check_same_run(
    folder: Path,
    recipe: Recipe,
    settings: "RunSettings",
    seed: int | None = None,
    *,
    any_length: bool = False,
) -> None:
    """Raise unless the run in a folder has this recipe and these settings.

    Threads and devices may differ, since they only change the last digits.

    Arguments:
        folder: The run folder.
        recipe: The requested recipe.
        settings: The requested settings.
        seed: The requested seed; None for any.
        any_length: Whether it may be trained for another number of steps or epochs.
    """
    from cayley.lab.runs import compare_code, find_code, read_run
    from cayley.lab.training import reads_files

    description, found = read_run(folder)
    if any_length:
        length = {"steps": found.training.steps, "epochs": found.training.epochs}
        recipe = replace(recipe, training=replace(recipe.training, **length))
    differ = differences(found, recipe)
    differ += compare_code(description.code, find_code(recipe))
    if seed not in (None, description.seed):
        differ.append(f"seed {description.seed}, not {seed}")
    if description.tiny != settings.tiny:
        differ.append("a few made-up examples" if description.tiny else "the data, not --tiny")
    precision = description.machine.precision
    if precision != settings.machine.precision:
        differ.append(f"precision {precision}, not {settings.machine.precision}")
    if reads_files(recipe.task) and not settings.tiny:
        data, wanted = description.data, settings.data
        known = settings.check and data.check and recipe.task.settings.get("corpus") != "own"
        # checked files are the same anywhere; without --data, those of the run are used
        if wanted is not None and not known and data.folder != str(wanted.resolve()):
            differ.append(f"data from {data.folder}, not {wanted.resolve()}")
        if settings.check and not data.check:
            differ.append("unchecked data")
    if differ:
        raise RunError(
            f"expected the requested run in {folder}, got one with {'; '.join(differ)}: "
            f"choose another --output, or delete the folder. To continue the run that is there, "
            f"wherever its data are now: cayley resume {folder}"
        )


def print_result(folder: Path, result: "RunResult") -> None:
    """Print the numbers of a run, and what was published."""
    from cayley.lab.report import MeasuredRun
    from cayley.lab.report.summary import find_changes
    from cayley.lab.runs import read_run
    from cayley.lab.training import title

    description, recipe = read_run(folder)
    metric = description.metric.name
    print(
        f"{title(description)}: {result.status}, {result.step} steps in "
        f"{duration(result.seconds)}, in {folder}"
    )
    for split, selected in result.selected.items():
        by = selected.chosen_by
        chosen = "the last" if by == "last" else f"the best by {by}"
        hint = ", which is optimistic" if by == split and split == "test" else ""
        print(
            f"  {split} {metric} {short_number(selected.scores[metric])} (step {selected.step}, "
            f"{chosen}{hint}), baseline {short_number(description.baseline[split][metric])}"
        )
    if result.audio:
        scores = ", ".join(
            f"{SOUND.get(name, name)} {short_number(value)}" for name, value in result.audio.items()
        )
        print(f"  sound of the test set: {scores}")
    # several papers may print the same number: only the first of them is named
    several = reversed(describe_recipe(recipe)["published"])
    published = {(one["metric"], one["value"]): one for one in several}
    changes = find_changes(MeasuredRun(folder, recipe, description)) if published else ()
    with_others = ", with other settings" if changes else ""
    for (name, value), one in sorted(published.items()):
        print(f"  published{with_others}: {name} {value:g}, {one['paper']}, {one['location']}")
    if changes:
        print(f"  here: {'; '.join(changes)}")


def describe_spread(results: list["RunResult"]) -> str:
    """Mean and standard deviation over runs, by split and metric."""
    from statistics import mean, stdev

    parts = []
    for split, selected in results[0].selected.items():
        for metric in selected.scores:
            values = [result.selected[split].scores[metric] for result in results]
            spread = f"{short_number(mean(values))} ± {short_number(stdev(values))}"
            parts.append(f"{split} {metric} {spread}")
    return ", ".join(parts)
