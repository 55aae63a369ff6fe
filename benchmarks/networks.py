"""Time of forward and backward of every network, against the naive loop and nn.LSTM, in one run.

    python benchmarks/networks.py [--threads 1] [--repeat 5] [--shape B,n,T ...] [-o FILE.json]

"Naive" is what users write by hand: a Python loop over the steps under autograd, with W formed and
the input multiplied once per forward pass. Every network's output and gradients are compared with
its naive loop before anything is timed. Gradients arrive at every step, and denormals are flushed
for everybody, since vanishing gradients would slow the LSTM down.
"""

import argparse
import copy
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from unittest.mock import patch

import torch
from torch import Tensor, nn

import cayley
from cayley.layers.recurrent import Recurrent
from cayley.recurrences import elman_loop, gru_loop, lstm_loop

SHAPES = [(50, 60, 200), (20, 190, 500), (128, 170, 200)]
NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "nn.RNN(tanh)": lambda n: nn.RNN(2, n),
    "nn.RNN(relu)": lambda n: nn.RNN(2, n, nonlinearity="relu"),
    "nn.GRU": lambda n: nn.GRU(2, n),
    "RNN(tanh)": lambda n: cayley.RNN(2, n),
    "ScoRNN": lambda n: cayley.ScoRNN(2, n),
    "ScuRNN": lambda n: cayley.ScuRNN(2, n // 2),
    "URNN": lambda n: cayley.URNN(2, n // 2),
    "FullURNN": lambda n: cayley.FullURNN(2, n // 2),
    "EURNN": lambda n: cayley.EURNN(2, n // 2),
    "ORNN": lambda n: cayley.ORNN(2, n),
    "ExpRNN": lambda n: cayley.ExpRNN(2, n),
    "SpectralRNN": lambda n: cayley.SpectralRNN(2, n),
    "ENRNN": lambda n: cayley.ENRNN(2, n - n // 3, n // 3),
    "NCGRU": lambda n: cayley.NCGRU(2, n),
    "LSTM": lambda n: cayley.LSTM(2, n),
    "LSTM(layer)": lambda n: cayley.LSTM(2, n, norm="layer"),
    "LSTM(atn, 25)": lambda n: cayley.LSTM(2, n, norm="atn", window=25),
}


def naive(layer: nn.Module, x: Tensor) -> Tensor:
    """The layer with the recurrence as a Python loop."""
    with (
        patch("cayley.layers.elman.elman", elman_loop),
        patch("cayley.layers.gru.gru", gru_loop),
        patch("cayley.layers.lstm.lstm", lstm_loop),
    ):
        return layer(x)[0]


def fused(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x)[0]


def check(layer: Recurrent, x: Tensor) -> None:
    """Raise unless the layer and its naive loop agree in output and all gradients.

    In double precision: after some hundred steps a normalised LSTM in float32 is off by 1e-3,
    whichever way it is computed.
    """
    layer, x = copy.deepcopy(layer).double(), x.double()
    results = []
    for run in (fused, naive):
        output = run(layer, x)
        results.append((output, *torch.autograd.grad(output.sum(), tuple(layer.parameters()))))
    for ours, theirs in zip(*results, strict=True):
        if not (ours - theirs).abs().max() <= 1e-6 * theirs.abs().max():
            raise SystemExit(f"{type(layer).__name__}: the operator and the loop disagree")


def seconds(run: Callable[[nn.Module, Tensor], Tensor], layer: nn.Module, x: Tensor) -> float:
    layer.zero_grad()
    start = time.perf_counter()
    output = run(layer, x)
    output.backward(torch.ones_like(output))
    return time.perf_counter() - start


def measure(shape: tuple[int, ...], repeat: int) -> list[dict]:
    B, n, T = shape
    x = torch.randn(T, B, 2)
    lstm = nn.LSTM(2, n)
    layers = {name: make(n) for name, make in NETWORKS.items()}
    cases: dict[str, tuple[Callable, nn.Module]] = {"nn.LSTM": (fused, lstm)}
    for name, layer in layers.items():
        cases[name] = (fused, layer)
        if isinstance(layer, Recurrent):
            check(layer, x)
            cases[f"{name}, naive loop"] = (naive, layer)
    times: dict[str, list[float]] = {name: [] for name in cases}
    for round_ in range(repeat + 1):
        # round by round, so that a busy moment of the machine falls on everybody
        for name, (run, layer) in cases.items():
            elapsed = seconds(run, layer, x)
            if round_:
                times[name].append(elapsed)
    peer = median(times["nn.LSTM"])
    return [
        {
            "network": name,
            "B": B,
            "n": n,
            "T": T,
            "milliseconds": 1e3 * median(values),
            "spread": 1e3 * (max(values) - min(values)),
            "speed over nn.LSTM": peer / median(values),
            "speed over naive loop": (
                median(times[f"{name}, naive loop"]) / median(values)
                if f"{name}, naive loop" in times
                else None
            ),
        }
        for name, values in times.items()
        if not name.endswith("naive loop")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--shape", nargs="+", metavar="B,n,T")
    parser.add_argument("-o", "--output", type=Path, help="write the numbers as JSON too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(5544)
    shapes = [tuple(map(int, shape.split(","))) for shape in options.shape or ()] or SHAPES

    rows = []
    for shape in shapes:
        print("B = {}, n = {}, T = {}".format(*shape))
        print(f"{'network':16}{'ms':>9}{'spread':>9}{'× nn.LSTM':>11}{'× naive':>9}")
        for row in measure(shape, options.repeat):
            loop = row["speed over naive loop"]
            print(
                f"{row['network']:16}{row['milliseconds']:9.1f}{row['spread']:9.1f}"
                f"{row['speed over nn.LSTM']:11.2f}{'' if loop is None else f'{loop:9.2f}':>9}",
                flush=True,
            )
            rows.append(row)
        print()
    machine = {
        "cayley": cayley.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": processor(),
        "threads": options.threads,
        "repeat": options.repeat,
        "dtype": "float32",
        "date": time.strftime("%Y-%m-%d"),
    }
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    print("forward and backward, medians; a speed of 2 over a peer means half its time.")
    print("Complex networks have n/2 complex units, hence n real features.")
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


def processor() -> str:
    """The name of the CPU, where the system tells it."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
