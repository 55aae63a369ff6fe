"""The command ``cayley study``."""

import json
import sys
from argparse import Namespace
from dataclasses import asdict

from cayley.lab.commands.planning import check_cluster
from cayley.lab.errors import RecipeError

__all__ = ["study"]


def study(options: Namespace) -> int:
    """Compute a study: numbers and a picture of what goes on inside networks.

    Its folder has study.json, with the numbers of every seed, and picture.png, the picture of the
    first seed. Existing seeds are not computed again. cayley verdicts reads both runs and studies.

    With --ray, it is computed on a node of a Ray cluster.
    """
    from cayley.lab.runs import Machine
    from cayley.lab.studies import STUDIES, find_study, run_study
    from cayley.lab.training import RunSettings

    if options.list:
        for one in STUDIES.values():
            if options.json:
                known = {"study": one.name, "title": one.title, "claims": one.claims}
                print(json.dumps(known | {"settings": one.settings}))
            else:
                decides = ", ".join(one.claims) or "no claim of the documents"
                print(f"{one.name}: {one.title}\n  decides {decides}")
        return 0
    if options.study is None:
        raise RecipeError("expected the name of a study, got none: see cayley study --list")
    check_cluster(options)
    chosen = find_study(options.study)
    if options.ray is not None:
        if code := _compute_on_cluster(options):
            return code
        # it is only read from now on, which needs no device
        options.device = "cpu"
    # on a GPU steps as CUDA graphs, where they can be
    machine = Machine(options.device, threads=options.threads, graph=None)
    record = run_study(
        chosen,
        options.output,
        seeds=options.seeds or 1,
        jobs=options.jobs,
        changes=options.set,
        tiny=options.tiny,
        settings=RunSettings(machine, data=options.data),
        tell=(lambda words: None) if options.json else print,
    )
    if options.json:
        print(json.dumps(asdict(record)))
        return 0
    for seed, one in record.seeds.items():
        print(f"seed {seed}")
        for name, value in one.numbers.items():
            if not isinstance(value, list):
                print(f"  {name} {value:.4g}")
    print(f"{options.output / record.study}: study.json and picture.png")
    return 0


def _compute_on_cluster(options: Namespace) -> int:
    """Compute a study on a node; the caller prints it."""
    from cayley.lab.commands.cluster import choose_share, on_nodes, run_on_cluster
    from cayley.lab.commands.queue import Work
    from cayley.lab.commands.side_by_side import child_command

    share = choose_share(options)
    options = on_nodes(options)
    name, output = options.study, options.output
    arguments = ["study", name, "--output", str(output), "--seeds", str(options.seeds or 1)]
    arguments += ["--device", options.device, "--threads", str(options.threads)]
    if options.data is not None:
        arguments += ["--data", str(options.data)]
    if options.set:
        arguments += ["--set", *options.set]
    arguments += ["--tiny"] * options.tiny
    arguments += ["--jobs", str(options.jobs)]
    return run_on_cluster(
        [Work(name, name, output / name, child_command(arguments))],
        options.ray,
        share,
        output / "queue.json",
        fetch=options.fetch,
        tell=lambda words: None if options.json else print(words, file=sys.stderr),
    )
