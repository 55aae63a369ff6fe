"""The commands that train, go on and evaluate."""

import json
import sys
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING

from cayley.lab.commands.listing import describe_recipe
from cayley.lab.errors import Interrupted, LabError, RecipeError, RunError
from cayley.lab.recipes import Recipe, differences, find_recipe, tables
from cayley.lab.wording import duration, short_number

if TYPE_CHECKING:
    from cayley.lab.runs import RunResult
    from cayley.lab.training import RunSettings

__all__ = ["check_same_run", "evaluate", "reproduce", "resume", "train"]


def train(options: Namespace) -> int:
    """Train a recipe, in a folder of its own for each seed.

    With --seeds, runs that are finished are skipped and others gone on with; without it, a folder
    that holds a run is refused.
    """
    entry = find_recipe(options.recipe)
    recipe = entry.recipe(options.variant, options.set, options.task, tiny=options.tiny)
    _say(entry.implied(options.variant, options.set, tiny=options.tiny), options)
    overrides = [*options.set, *([f"task={options.task}"] if options.task else [])]
    first = recipe.seed if options.seed is None else options.seed
    seeds = range(first, first + (options.seeds or 1))
    jobs = [_Job(recipe, seed, tuple(overrides)) for seed in seeds]
    return _work(jobs, options, again=options.seeds is not None)


def reproduce(options: Namespace) -> int:
    """Train all rows of a table, each with as many seeds as the paper; what is done is skipped."""
    if options.table not in tables():
        raise RecipeError(
            f"expected a table of {', '.join(tables())}, got {options.table!r}: see cayley list"
        )
    jobs = []
    said: list[str] = []
    for entry in tables()[options.table].entries:
        if options.variant in entry.variants:
            recipe = entry.recipe(options.variant, options.set, tiny=options.tiny)
            said += entry.implied(options.variant, options.set, tiny=options.tiny)
            count = options.seeds or recipe.seeds
            seeds = range(recipe.seed, recipe.seed + count)
            jobs += [_Job(recipe, seed, tuple(options.set)) for seed in seeds]
    if not jobs:
        raise RecipeError(f"{options.table}: expected a row with the variant {options.variant}")
    _say(said, options)
    return _work(jobs, options, again=True)


def resume(options: Namespace) -> int:
    """Go on with a run where it was left; the final numbers are those of an undisturbed run."""
    from cayley.lab import training
    from cayley.lab.runs import Interrupts

    with Interrupts() as interrupts:
        result = training.resume(
            options.run_folder,
            device=options.device or "",
            data=options.data,
            reporter=training.choose_reporter(options.quiet, options.json),
            interrupts=interrupts,
            checkpoint_seconds=options.checkpoint_every,
        )
    if not (options.quiet or options.json):
        print_result(options.run_folder, result)
    return 0


def evaluate(options: Namespace) -> int:
    """Score the weights of a run."""
    from cayley.lab import training

    scores = training.evaluate(
        options.run_folder,
        options.split,
        weights=options.weights,
        device=options.device or "",
        data=options.data,
        audio=options.audio,
    )
    if options.json:
        print(json.dumps({"split": options.split, "weights": options.weights, "scores": scores}))
    else:
        for name, value in scores.items():
            print(f"{options.split} {name} {value:.6g}")
    return 0


@dataclass(frozen=True)
class _Job:
    recipe: Recipe
    seed: int
    overrides: tuple[str, ...]


def _work(jobs: list[_Job], options: Namespace, *, again: bool) -> int:
    """Do jobs one after the other; among several, one that fails does not stop the rest.

    Arguments:
        jobs: What to do.
        options: Of the command.
        again: Whether to go on with runs that are there already.

    Returns:
        The exit code: that of the first failure.
    """
    from cayley.lab import training
    from cayley.lab.runs import Interrupts, Machine

    machine = Machine(options.device, options.precision, options.threads)
    code = 0
    results: dict[str, list[RunResult]] = {}
    with Interrupts() as interrupts:
        for job in jobs:
            folder = training.run_folder(options.output, job.recipe, job.seed, job.overrides)
            reporter = training.choose_reporter(options.quiet, options.json)
            settings = training.RunSettings(
                machine,
                data=options.data,
                download=options.download,
                check=not options.unchecked,
                tiny=options.tiny,
                overrides=job.overrides,
                checkpoint_seconds=options.checkpoint_every,
            )
            try:
                if again and (folder / "run.json").exists():
                    check_same_run(folder, job.recipe, settings)
                    result = training.resume(
                        folder,
                        device="" if options.device == "auto" else options.device,
                        data=options.data,
                        reporter=reporter,
                        interrupts=interrupts,
                        checkpoint_seconds=options.checkpoint_every,
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
                if len(jobs) == 1 or isinstance(error, Interrupted):
                    raise
                print(f"{job.recipe.name}, seed {job.seed}: {error}", file=sys.stderr)
                code = code or error.code
                continue
            results.setdefault(job.recipe.name, []).append(result)
            if not (options.quiet or options.json):
                print_result(folder, result)
    if not (options.quiet or options.json):
        for name, several in results.items():
            if len(several) > 1:
                print(f"{name}, {len(several)} seeds: {describe_spread(several)}")
    return code


def _say(lines: list[str], options: Namespace) -> None:
    """Print each line once, where a person may be reading."""
    if not (options.quiet or options.json):
        for line in dict.fromkeys(lines):
            print(line, file=sys.stderr)


def check_same_run(folder: Path, recipe: Recipe, settings: "RunSettings") -> None:
    """Raise unless the run in a folder is one of this recipe, with these settings.

    Threads and devices may be others, which change last digits only.
    """
    from cayley.lab.runs import read_run
    from cayley.lab.training import reads_files

    description, found = read_run(folder)
    differ = differences(found, recipe)
    if description.tiny != settings.tiny:
        differ.append("a few made-up examples" if description.tiny else "the data, not --tiny")
    precision = description.machine.precision
    if precision != settings.machine.precision:
        differ.append(f"precision {precision}, not {settings.machine.precision}")
    if reads_files(recipe.task) and not settings.tiny:
        data, wanted = description.data, settings.data
        known = settings.check and data.check and recipe.task.settings.get("corpus") != "own"
        # known files are the same anywhere; without --data the run's own place is meant
        if wanted is not None and not known and data.folder != str(wanted.resolve()):
            differ.append(f"data from {data.folder}, not {wanted.resolve()}")
        if settings.check and not data.check:
            differ.append("unchecked data")
    if differ:
        raise RunError(
            f"expected the run that is asked for in {folder}, got one with {'; '.join(differ)}: "
            f"choose another --output, or delete the folder. To go on with the run that is there, "
            f"wherever its data are now: cayley resume {folder}"
        )


def print_result(folder: Path, result: "RunResult") -> None:
    """Print the numbers of a run, and what was published."""
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
    # several papers print the same number: the first of them is named
    several = reversed(describe_recipe(recipe)["published"])
    published = {(one["metric"], one["value"]): one for one in several}
    for (name, value), one in sorted(published.items()):
        print(f"  published: {name} {value:g}, {one['paper']}, {one['location']}")


def describe_spread(results: list["RunResult"]) -> str:
    """Mean and standard deviation over runs, by split and metric."""
    parts = []
    for split, selected in results[0].selected.items():
        for metric in selected.scores:
            values = [result.selected[split].scores[metric] for result in results]
            spread = f"{short_number(mean(values))} ± {short_number(stdev(values))}"
            parts.append(f"{split} {metric} {spread}")
    return ", ".join(parts)
