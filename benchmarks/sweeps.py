"""A sweep of 40 short trials with 1, 2 and 4 workers.

    python benchmarks/sweeps.py [--workers 1 2 4] [--trials 40] [--steps 100] [--storage URL]
        [-o FILE.json]

A worker is ``cayley sweep`` in a process of its own with one thread; all start at the same time,
and the clock runs from there until the last one ends: it includes their start, which is most of
what one worker does without a trial. "Training" is the time that the runs themselves report, "in
trials" what the workers spent between claiming a trial and telling its value; the rest of a
worker's time is its start, the storage, and waiting for the others at the end.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from measure import machine, write

from cayley.lab.runs import find_runs, read_result

ROOT = Path(__file__).parent.parent
SPACE = """
title = "Forty short trials"
recipe = "quickstart"
metric = "valid_mse"
trials = {trials}
set = ["training.steps={steps}", "evaluation.every={every}", "model.hidden=40"]
sampler = {{ name = "random", seed = 1 }}

[parameters]
optim.lr = {{ low = 1e-4, high = 1e-1, log = true }}
optim.recurrent_lr = {{ low = 1e-5, high = 1e-2, log = true }}
model.negative_ones = [0, 10, 20]
"""


def sweep(workers: int, trials: int, steps: int, storage: str) -> dict[str, Any]:
    """The seconds of a sweep, and where they went."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        space = folder / "forty.toml"
        space.write_text(SPACE.format(trials=trials, steps=steps, every=max(1, steps // 2)))
        arguments = ["sweep", str(space), "--json", "--device", "cpu", "-o", str(folder / "runs")]
        if storage:
            arguments += ["--storage", storage, "--study", f"forty-{workers}-{time.time_ns()}"]
        began = time.perf_counter()
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "cayley", *arguments],
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
            )
            for _ in range(workers)
        ]
        outputs = [process.communicate()[0] for process in processes]
        seconds = time.perf_counter() - began
        assert not any(process.returncode for process in processes)
        done = [json.loads(line) for output in outputs for line in output.splitlines()]
        results = [read_result(run) for run in find_runs(folder / "runs")]
    assert sorted(one["trial"] for one in done) == list(range(trials))
    return {
        "workers": workers,
        "trials": trials,
        "seconds": seconds,
        "in trials, s": sum(one["seconds"] for one in done),
        "training, s": sum(one.seconds + one.evaluation_seconds for one in results),
        "trials of each": [len(output.splitlines()) for output in outputs],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--storage", default="", help="else a journal beside the runs")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for workers in options.workers:
        row = sweep(workers, options.trials, options.steps, options.storage)
        row["speed"] = (rows[0] if rows else row)["seconds"] / row["seconds"]
        rows.append(row)
        print(
            f"{workers} workers: {row['seconds']:.1f} s, {row['speed']:.2f} times as fast as "
            f"{rows[0]['workers']}; in trials {row['in trials, s']:.1f} s, training "
            f"{row['training, s']:.1f} s; trials of each {row['trials of each']}",
            flush=True,
        )
    kind = options.storage.partition(":")[0] or "journal"
    settings = {"cores": os.cpu_count(), "steps": options.steps, "storage": kind}
    write(options.output, machine(**settings), rows)


if __name__ == "__main__":
    main()
