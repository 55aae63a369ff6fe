"""What BNP adds to a training step, as a ratio in one run.

    python benchmarks/bnp.py [--threads 1] [--repeat 30]

A step is forward, backward and SGD on a batch that is there already. Plain and preconditioned steps
take turns, each on a model of its own, and the time is that of the processor, so that other
programs on the machine count little. "Twice plain" shows what two equal models differ by.
"""

import argparse
import copy
import platform
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn

import cayley
from cayley.preconditioners import BNP


class Cell(nn.Module):
    """A recurrence of linear layers, written as a loop: many small calls of the same modules."""

    def __init__(self) -> None:
        super().__init__()
        self.U, self.W = nn.Linear(2, 64), nn.Linear(64, 64, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[1], 64)
        for x_t in x:
            h = (self.U(x_t) + self.W(h)).tanh()
        return h


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP 3 × 1024, batch 256": (
        lambda: nn.Sequential(
            nn.Linear(1024, 1024),
            nn.ReLU(),
            nn.Linear(1024, 1024),
            nn.ReLU(),
            nn.Linear(1024, 1024),
        ),
        (256, 1024),
    ),
    "Conv2d 32 → 64, batch 32, 28 × 28": (lambda: nn.Conv2d(32, 64, 3), (32, 32, 28, 28)),
    "nn.LSTM 170, batch 50, T = 200": (lambda: nn.LSTM(2, 170), (200, 50, 2)),
    "ScoRNN 170, batch 50, T = 200": (lambda: cayley.ScoRNN(2, 170), (200, 50, 2)),
    "loop of nn.Linear 64, batch 50, T = 200": (Cell, (200, 50, 2)),
}


def train(model: nn.Module, x: Tensor, preconditioned: bool) -> Callable[[], None]:
    """One step of training."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    if preconditioned:
        BNP(model).attach(optimizer)

    def step() -> None:
        optimizer.zero_grad()
        output = model(x)
        output = output[0] if isinstance(output, tuple) else output
        output.square().mean().backward()
        optimizer.step()

    return step


def measure(name: str, repeat: int) -> tuple[float, float, float]:
    """Milliseconds of a plain step, and what twice plain and BNP take relative to it."""
    make, shape = CASES[name]
    model, x = make(), torch.randn(shape)
    steps = [
        train(copy.deepcopy(model), x, preconditioned) for preconditioned in (False, False, True)
    ]
    times: list[list[float]] = [[] for _ in steps]
    for round_ in range(repeat + 3):
        for step, seconds in zip(steps, times, strict=True):
            start = time.process_time()
            step()
            if round_ >= 3:
                seconds.append(time.process_time() - start)
    plain, again, bnp = (median(seconds) for seconds in times)
    return 1e3 * plain, again / plain, bnp / plain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(5544)
    print(f"{'model':42}{'plain, ms':>10}{'twice plain':>13}{'BNP':>8}")
    for name in CASES:
        plain, again, bnp = measure(name, options.repeat)
        print(f"{name:42}{plain:10.1f}{again:13.2f}{bnp:8.2f}", flush=True)
    print(
        f"cayley {cayley.__version__}, torch {torch.__version__}, Python "
        f"{platform.python_version()}, threads {options.threads}, repeat {options.repeat}, "
        f"float32, {time.strftime('%Y-%m-%d')}; medians of processor time, ratios to plain"
    )


if __name__ == "__main__":
    main()
