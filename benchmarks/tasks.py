"""Time of making a batch, as a share of a training step, in one run.

    python benchmarks/tasks.py [--data DIR] [--device cpu] [--repeat 20] [-o FILE.md]

On the CPU batches and steps take turns as in training: the next batches are made beside a step, on
a second core where there is one, and the time of a batch is what a step waits for it. On the GPU a
series of batches and a series of steps take turns, until all is computed. A step is forward,
backward and the optimizer for the smallest network that the papers train on the task: the hardest
case. Tasks that read files are left out where there are none in DIR.
"""

import argparse
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from measure import synchronize
from torch import Tensor, nn

import cayley
from cayley.lab.errors import DataError
from cayley.lab.tasks import (
    Batch,
    ExampleTask,
    Graph,
    Position,
    Prefetcher,
    Source,
    Task,
    chunk_length,
    make_task,
)

LIMIT = 0.05


class SAGE(nn.Module):
    """Three layers that add a map of each node to a map of its neighbours' mean."""

    def __init__(self, features: int, units: int) -> None:
        super().__init__()
        sizes = (features, units, units)
        self.own = nn.ModuleList(nn.Linear(size, units) for size in sizes)
        self.mean = nn.ModuleList(nn.Linear(size, units) for size in sizes)

    def forward(self, graph: Graph) -> Tensor:
        h, (source, target) = graph
        degree = torch.bincount(target, minlength=len(h)).clamp_min(1).unsqueeze(1)
        for own, mean in zip(self.own, self.mean, strict=True):
            near = torch.zeros_like(h).index_add(0, target, h[source]) / degree
            h = (own(h) + mean(near)).relu()
        return h


# name, settings, batch size, units of a layer, its constructor; rows are learnt by SGD, else Adam
CASES: list[tuple[str, dict[str, Any], int, int, Callable[[int, int], nn.Module]]] = [
    ("adding", {"T": 200}, 50, 60, nn.LSTM),
    ("adding", {"T": 750}, 50, 170, cayley.ScoRNN),
    ("copying", {"T": 100}, 128, 68, nn.LSTM),
    ("copying", {"T": 1000}, 20, 190, cayley.ScoRNN),
    ("denoise", {"T": 100}, 128, 100, nn.LSTM),
    ("mnist", {"order": "permuted"}, 50, 170, cayley.ScoRNN),
    ("mnist", {"noise": 0.1}, 50, 128, nn.LSTM),
    ("characters", {"K": 50}, 32, 350, nn.LSTM),
    ("words", {"K": 70, "jitter": True}, 20, 400, nn.LSTM),
    ("speech", {"corpus": "nltk"}, 28, 84, nn.LSTM),
    ("cifar10", {}, 60, 100, nn.Linear),
    ("cifar10", {}, 6, 100, nn.Linear),
    ("cora", {}, 1, 16, SAGE),
    ("tolokers", {"neighbours": (10, 10, 10)}, 1024, 256, SAGE),
]


class Network(nn.Module):
    """A layer of the papers between what a task shows and what it asks."""

    def __init__(self, task: Task, units: int, make_layer: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.task = task
        size = units if task.reads == "tokens" else task.input_size
        self.embedding = nn.Embedding(task.input_size, size) if task.reads == "tokens" else None
        self.layer = make_layer(size, units)
        more = [nn.ReLU(), nn.Linear(units, units)] * (2 if task.reads == "rows" else 0)
        self.answer = nn.Sequential(*more, nn.ReLU(), nn.Linear(units, task.output_size))

    def forward(self, batch: Batch) -> Tensor:
        x = batch.input
        if self.task.reads in ("rows", "graph"):
            return self.answer(self.layer(x))
        h, _ = self.layer(x if self.embedding is None else self.embedding(x))
        return self.answer(h[-1] if self.task.answers == "last" else h)


def measure(task: Task, B: int, network: Network, device: str, repeat: int) -> tuple[float, float]:
    """Mean seconds of a batch and of a training step, over at least 4 × ``repeat`` of them."""
    network.to(device)
    rule = torch.optim.SGD if task.reads == "rows" else torch.optim.Adam
    optimizer = rule(network.parameters(), lr=1e-3)
    n = chunk_length(task.example_size, B, device) if isinstance(task, ExampleTask) else 1
    # batches that are made at once count only together
    length = -(-repeat // n) * n
    series = 1 if device == "cpu" else length

    def seconds(run: Callable[[], None]) -> float:
        synchronize(device)
        start = time.perf_counter()
        for _ in range(series):
            run()
        synchronize(device)
        return (time.perf_counter() - start) / series

    coming = Prefetcher(task, "train", B, seed=1, device=device)
    batch = coming.batch(Position())

    def advance() -> None:
        nonlocal batch
        batch = coming.batch(batch.next)

    def step() -> None:
        optimizer.zero_grad()
        task.loss(network(batch), batch).backward()
        optimizer.step()

    step()
    times = [(seconds(advance), seconds(step)) for _ in range(4 * length // series)]
    batches, steps = zip(*times, strict=True)
    return fmean(batches), fmean(steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="folder with the data files")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--task", nargs="+", help="only these")
    parser.add_argument("-o", "--output", type=Path, help="write the table as Markdown too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(5544)
    where = torch.cuda.get_device_name() if options.device == "cuda" else "one CPU thread"
    lines = [
        f"torch {torch.__version__}, Python {platform.python_version()}, {where}, float32, means "
        f"of at least 4 × {options.repeat}",
        "",
        "| task | B | network | batch, ms | step, ms | batch / (batch + step) |",
        "|---|---|---|---|---|---|",
    ]
    print("\n".join(lines))
    worst = 0.0
    # all of CIFAR-10 is large, and its contents do not matter here
    made_up = Path(tempfile.mkdtemp())
    for part in ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"):
        (made_up / f"{part}.bin").write_bytes(bytes(2000 * 3073))
    (made_up / "test_batch.bin").write_bytes(bytes(3073))
    for name, settings, B, units, make_layer in CASES:
        if options.task and name not in options.task:
            continue
        if make_task(name).needs:
            folder = made_up if name == "cifar10" else options.data
            settings = {**settings, "source": Source(folder, check=name != "cifar10")}
        task = make_task(name, **settings)
        try:
            task.size("train")
        except DataError as error:
            print(f"{name} left out: {error}", file=sys.stderr)
            continue
        network = Network(task, units, make_layer)
        batch, step = measure(task, B, network, options.device, options.repeat)
        share = batch / (batch + step)
        worst = max(worst, share)
        shown = ", ".join(f"{key}={value}" for key, value in settings.items() if key != "source")
        lines.append(
            f"| {name} {shown} | {B} | {make_layer.__name__} {units} | {1e3 * batch:.2f} | "
            f"{1e3 * step:.2f} | {share:.1%} |"
        )
        print(lines[-1], flush=True)
    shutil.rmtree(made_up)
    print(f"\nlargest share {worst:.1%}, limit {LIMIT:.0%}")
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
