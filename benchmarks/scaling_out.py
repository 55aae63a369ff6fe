"""Training steps a second over the number of processes that share a batch, with a picture.

    python benchmarks/scaling_out.py [--device cpu] [--processes 1 2] [--repeat 20] [-o FILE.json]

A step is everything that ``cayley train --devices N`` does with a batch that is already made: each
process takes its share forward and backward, gradients are added up, and every process moves its
weights. The batch is the same whatever the number of processes. The share of communication is what
a step takes longer than one without any exchange, waiting for the slowest process included. On a
CPU each process has one thread, so that more processes than cores say nothing. No speed is printed
before the losses of the first steps agree with those of one process, in double precision and on
short sequences, where rounding does not grow.

The picture lies beside the file, as PNG.
"""

import argparse
import json
import os
import sys
import time
import uuid
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from measure import clocked, machine, write
from pictures import draw_scaling_out
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.nn.parallel import DistributedDataParallel

import cayley
from cayley.lab.processes import find_processes
from cayley.lab.recipes import find_recipe
from cayley.lab.runs import Machine
from cayley.lab.tasks import Batch, Position
from cayley.lab.training import RunSettings, build_task, initial_model
from cayley.lab.training.learner import Learner
from cayley.norms import PopulationStatistics, synchronize

# a recipe, what is changed in it, B and T
CASES: dict[str, tuple[str, tuple[str, ...], int, int]] = {
    "ScoRNN 170": ("scornn/mnist-170", (), 120, 784),
    "ScoRNN 512": ("scornn/mnist-170", ("model.hidden=512", "parameters=0"), 120, 200),
    "LSTM 128": ("lstm/pmnist-128", (), 120, 784),
    "NC-GRU 118": ("scornn/mnist-170", ("model.name=NCGRU", "model.hidden=118"), 120, 200),
    "LSTM 128, batch": ("lstm/pmnist-128", ("model.norm=batch", "parameters=0"), 120, 100),
}
# steps whose losses are compared, and of sequences of so many steps
AGREED, SHORT = 3, 10
TOLERANCE = 1e-8


def make(name: str, place: Machine, T: int) -> tuple[Learner, Batch]:
    """What learns, and what from."""
    recipe_name, changes, B, _ = CASES[name]
    recipe = find_recipe(recipe_name).recipe(overrides=changes)
    task = build_task(recipe.task, RunSettings(tiny=True))
    learner = Learner(recipe, task, initial_model(recipe, task, 1, place), place)
    device, generator = learner.engine.device, torch.Generator().manual_seed(1)
    x = torch.rand(T, B, task.input_size, generator=generator).to(device, place.dtype)
    y = torch.randint(task.output_size, (B,), generator=generator).to(device)
    return learner, Batch(x, y, "train", Position(0, 1), Position(0, 2))


def measure(name: str, device: str, repeat: int) -> dict[str, Any]:
    """Losses, and seconds of a step with and without an exchange, in one of the processes."""
    learner, batch = make(name, Machine(device, "64-true", threads=1), SHORT)
    losses = torch.stack([learner.learn(batch) for _ in range(AGREED)])
    if learner.share is not None:
        losses = learner.share.total(losses)
    _, _, B, T = CASES[name]
    learner, batch = make(name, Machine(device, threads=1), T)
    parameters = sum(p.numel() for p in learner.model.parameters())
    row: dict[str, Any] = {"network": name, "B": B, "T": T, "parameters": parameters}
    row["losses"] = losses.tolist()
    for _ in range(2):
        learner.learn(batch)
    row["seconds"] = median(clocked(lambda: learner.learn(batch), device) for _ in range(repeat))
    if learner.share is not None:
        modules = learner.model.modules()
        # what is synchronised is a loop
        loop = any(isinstance(each, PopulationStatistics) for each in modules)
        synchronize(learner.model, False)
        if learner.bnp is not None:
            learner.bnp.sync = False
        kind = "reference" if loop else "auto"
        assert isinstance(learner.forward, DistributedDataParallel)
        with learner.forward.no_sync(), cayley.backend(kind):
            times = [clocked(lambda: learner.learn(batch), device) for _ in range(repeat)]
        row["without"] = median(times)
    return row


def work(options: argparse.Namespace) -> None:
    """What each process does."""
    rows = [measure(name, options.device, options.repeat) for name in options.cases]
    if find_processes().first:
        options.worker.write_text(json.dumps(rows))


def launch(options: argparse.Namespace, processes: int) -> list[dict[str, Any]]:
    """The rows of so many processes."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(),
    )
    words = [__file__, "--device", options.device, "--repeat", str(options.repeat)]
    words += ["--cases", *options.cases]
    # of each process a warning of no concern
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    with TemporaryDirectory() as folder:
        file = Path(folder, "rows.json")
        elastic_launch(config, sys.executable)(*words, "--worker", str(file))
        return json.loads(file.read_text())


def finish(row: dict[str, Any], alone: dict[str, Any], processes: int) -> dict[str, Any]:
    """A row beside that of one process, once their losses agree."""
    pairs = zip(row.pop("losses"), alone["losses"], strict=True)
    error = max(abs(found - expected) for found, expected in pairs)
    if not error <= TOLERANCE:
        raise RuntimeError(
            f"expected losses of {row['network']} within {TOLERANCE} of one process, got {error:g} "
            f"for {processes}: no speed is reported"
        )
    seconds, without = row.pop("seconds"), row.pop("without", None)
    speedup = alone["seconds"] / seconds
    return {
        **row,
        "processes": processes,
        "milliseconds": 1e3 * seconds,
        "steps a second": 1 / seconds,
        "speedup": speedup,
        "efficiency": speedup / processes,
        "communication": 0.0 if without is None else max(0.0, 1 - without / seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("-o", "--output", type=Path, default=Path("out/scaling-out.json"))
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    if options.worker is not None:
        work(options)
        return
    alone = {row["network"]: row for row in launch(options, 1)}
    rows = []
    for processes in options.processes:
        began = time.monotonic()
        found = alone.values() if processes == 1 else launch(options, processes)
        for one in found:
            row = finish({**one}, alone[one["network"]], processes)
            rows.append(row)
            print(
                f"{row['network']}, B{row['B']} T{row['T']}, {processes} processes: "
                f"{row['steps a second']:.2f} steps a second, speedup {row['speedup']:.2f}, "
                f"communication {row['communication']:.0%}",
                flush=True,
            )
        print(f"{processes} processes took {time.monotonic() - began:.0f} s", flush=True)
    about = machine(options.device, precision="float32", repeat=options.repeat)
    write(options.output, about, rows)
    draw_scaling_out(rows, about, options.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
