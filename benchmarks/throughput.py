"""Runs per hour over the number of runs at once, with a picture.

    python benchmarks/throughput.py [--device cuda] [--runs 1 2 4 8 16 24] [-o FILE.json]

A run is the training of scornn/mnist-170, 70 epochs of 1,100 steps with batches of 50 sequences of
784 steps; evaluation is left out. If N networks take one step each in s seconds,

    runs per hour = 3600 · N / (70 · 1,100 · s)

The ways to train several are one at a time, whose runs per hour do not depend on N; N processes
that share the device; and ``cayley train --together``. On a GPU all take their steps as CUDA
graphs, and one at a time also without. Whether the processes share it by NVIDIA's MPS is found out
and said: start ``nvidia-cuda-mps-control -d`` before, and compare with a run without it.

A step is everything that ``cayley train`` does with a batch that is already on the device. The data
are made up. Each process starts and records its graphs before the clock does; then all of them take
the same number of steps, and the last to finish stops the clock. No speed is printed before the
losses of the first steps agree. The picture lies beside the file, as PNG.
"""

import argparse
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from ensembles import (
    check_losses,
    first_losses,
    learners,
    made_up,
    made_up_of,
    make_learner,
    one_by_one,
)
from measure import machine, synchronize, write
from pictures import draw_throughput
from torch import Tensor, multiprocessing

from cayley.lab.recipes import Recipe, find_recipe
from cayley.lab.training.ensemble import Ensemble

RECIPE = "scornn/mnist-170"
STEPS_OF_A_RUN = 70 * 1_100
WARM = 3  # steps after the first ones, in which graphs are recorded
LEAST = 3  # steps of a round

Step = Callable[[], list[Tensor]]


class Shape(NamedTuple):
    """What is trained, and where."""

    device: str
    B: int
    T: int
    hidden: int | None
    threads: int

    def recipe(self) -> Recipe:
        """The recipe, with another number of units if one is given."""
        changes = () if self.hidden is None else (f"model.hidden={self.hidden}", "parameters=0")
        return find_recipe(RECIPE).recipe(overrides=changes)

    def prepare(self) -> None:
        """Set up the process."""
        torch.set_num_threads(self.threads)
        torch.set_flush_denormal(True)


class Timing(NamedTuple):
    """The first losses of every network, and when each round began and ended."""

    losses: list[list[float]]
    rounds: list[tuple[float, float]]


def timed(step: Step, device: str, steps: int, repeat: int, start: Callable[[], Any]) -> Timing:
    """Several rounds of so many steps, each after ``start`` returns."""
    losses = first_losses(step)
    for _ in range(WARM):
        step()
    rounds = []
    for _ in range(repeat):
        synchronize(device)
        start()
        began = time.perf_counter()
        for _ in range(steps):
            step()
        synchronize(device)
        rounds.append((began, time.perf_counter()))
    return Timing(losses, rounds)


def alone(shape: Shape, seed: int, graph: bool) -> Step:
    """The step of one network."""
    recipe = shape.recipe()
    learner = make_learner(recipe, seed, shape.device, graph)
    batch = made_up(recipe, shape.B, shape.T, seed, shape.device)
    return partial(one_by_one, [learner], [batch])


def together(shape: Shape, N: int, steps: int, repeat: int) -> Timing:
    """N networks as one ensemble."""
    recipe = shape.recipe()
    own = learners(recipe, N, shape.device, shape.device == "cuda")
    batches = made_up_of(recipe, shape.B, shape.T, N, shape.device)
    step = partial(Ensemble(own[0].model).learn, own, batches)
    return timed(step, shape.device, steps, repeat, lambda: None)


def work(rank: int, shape: Shape, steps: int, repeat: int, barrier: Any, results: Any) -> None:
    """What each process does."""
    shape.prepare()
    step = alone(shape, rank + 1, shape.device == "cuda")
    results.put((rank, timed(step, shape.device, steps, repeat, barrier.wait)))


def in_processes(shape: Shape, N: int, steps: int, repeat: int) -> Timing:
    """N networks in a process each."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(N), context.SimpleQueue()
    multiprocessing.spawn(work, (shape, steps, repeat, barrier, results), nprocs=N)
    return joined([timing for _, timing in sorted(results.get() for _ in range(N))])


def joined(timings: Sequence[Timing]) -> Timing:
    """The timings of several processes as one: a round lasts until the last has finished."""
    losses = [[*chain(*step)] for step in zip(*(own.losses for own in timings), strict=True)]
    # on one machine all processes read the same clock
    rounds = [[*zip(*own, strict=True)] for own in zip(*(t.rounds for t in timings), strict=True)]
    return Timing(losses, [(min(began), max(ended)) for began, ended in rounds])


def mps_is_running() -> bool:
    """Whether new processes share the GPU by NVIDIA's Multi-Process Service."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        return False
    asked = subprocess.run(
        [control], input="get_server_list\n", capture_output=True, text=True, check=False
    )
    return asked.returncode == 0 and "Cannot" not in asked.stdout + asked.stderr


def row_of(way: str, N: int, steps: int, timing: Timing) -> dict[str, Any]:
    """Milliseconds of a step and network, and runs per hour."""
    seconds = [(ended - began) / steps for began, ended in timing.rounds]
    middle = median(seconds)
    return {
        "way": way,
        "runs": N,
        "steps": steps,
        "milliseconds": 1e3 * middle / N,
        "spread": 1e3 * (max(seconds) - min(seconds)) / N,
        "runs per hour": 3600 * N / (STEPS_OF_A_RUN * middle),
    }


def show(row: dict[str, Any]) -> None:
    print(
        f"{row['way']:26} {row['runs']:3} at once: {row['milliseconds']:8.3f} ms a step and run, "
        f"{row['runs per hour']:7.2f} runs per hour",
        flush=True,
    )


def measure(shape: Shape, runs: Sequence[int], seconds: float, repeat: int) -> list[dict[str, Any]]:
    """A row for each way and number of runs."""
    on_gpu = shape.device == "cuda"
    seeds = range(1, max(runs) + 1)
    expected = [Timing(first_losses(alone(shape, seed, False)), []) for seed in seeds]
    rows = []
    pace = 0.0  # seconds of a step of the quickest way with one network

    def steps_of(N: int) -> int:
        return max(LEAST, round(seconds / (N * pace)))

    def finish(way: str, N: int, steps: int, timing: Timing) -> None:
        check_losses(f"{way}, {N} at once", timing.losses, joined(expected[:N]).losses)
        rows.append(row_of(way, N, steps, timing))
        show(rows[-1])

    for graph in (False, True) if on_gpu else (False,):
        step = alone(shape, 1, graph)
        began, ended = timed(step, shape.device, LEAST, 1, lambda: None).rounds[0]
        pace = (ended - began) / LEAST
        steps, step = steps_of(1), alone(shape, 1, graph)
        timing = timed(step, shape.device, steps, repeat, lambda: None)
        finish("one at a time, graph" if graph else "one at a time", 1, steps, timing)
    suffix = (", MPS" if mps_is_running() else ", no MPS") if on_gpu else ""
    ways = {f"processes{suffix}": in_processes, "together": together}
    for way, run in ways.items():
        for N in runs:
            steps = steps_of(N)
            finish(way, N, steps, run(shape, N, steps, repeat))
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--length", type=int, default=784)
    parser.add_argument("--hidden", type=int, help="another number of units than the recipe's")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a round, at most")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("-o", "--output", type=Path, default=Path("out/throughput.json"))
    options = parser.parse_args(arguments)
    shape = Shape(options.device, options.batch, options.length, options.hidden, options.threads)
    shape.prepare()
    rows = measure(shape, options.runs, options.seconds, options.repeat)
    about = machine(
        options.device,
        precision="float32",
        repeat=options.repeat,
        cores=os.cpu_count(),
        B=shape.B,
        T=shape.T,
        steps_of_a_run=STEPS_OF_A_RUN,
    )
    if options.device == "cuda":
        about["mps"] = mps_is_running()
    write(options.output, about, rows)
    draw_throughput(rows, about, options.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
