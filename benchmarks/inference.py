"""Passes without gradients: piece by piece, as layers compute them, and whole, beside torch's.

    python benchmarks/inference.py [--device cpu] [--threads 1] [--shape 500 128 784] [-o FILE.json]

A shape is B, n and T. Memory is what a pass has in use at most, in units of its output. No speed is
printed before the output of the pieces has been compared with that of a pass with gradients, which
is never divided.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from unittest.mock import patch

import torch
from measure import Run, distance, machine, peak_memory, rounds, show_row, write
from networks import calm
from torch import Tensor, nn

import cayley
from cayley.layers import recurrent

NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "nn.GRU": lambda n: nn.GRU(1, n),
    "nn.LSTM": lambda n: nn.LSTM(1, n),
    "ScuRNN": lambda n: cayley.ScuRNN(1, n // 2),
    "NCGRU": lambda n: cayley.NCGRU(1, n),
    "LSTM": lambda n: cayley.LSTM(1, n),
    "LSTM(layer)": lambda n: cayley.LSTM(1, n, norm="layer"),
    "LSTM(atn, 25)": lambda n: cayley.LSTM(1, n, norm="atn", window=25),
}


@torch.no_grad()
def infer(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x)[0]


def whole(layer: nn.Module, x: Tensor) -> Tensor:
    with patch.object(recurrent, "piece_steps", lambda x, H: None):
        return infer(layer, x)


def measure(name: str, shape: tuple[int, int, int], device: str, repeat: int) -> dict[str, object]:
    B, n, T = shape
    layer, x = NETWORKS[name](n).to(device).eval(), torch.rand(T, B, 1, device=device)
    runs: dict[str, Run] = {"ms": partial(infer, layer, x)}
    if isinstance(layer, recurrent.Recurrent):
        checked = calm(layer)
        error = distance((infer(checked, x),), (checked(x)[0].detach(),))
        if not error <= 1e-4:
            raise SystemExit(f"{name} is {error:.1e} off: no speed is reported")
        runs["whole, ms"] = partial(whole, layer, x)
    times = {key: 1e3 * median(own) for key, own in rounds(runs, repeat, device).items()}
    row: dict[str, object] = {"network": name, "B": B, "n": n, "T": T, **times}
    for key, run in runs.items():
        peak = peak_memory(run, device)
        memory = key.replace("ms", "memory over output")
        row[memory] = None if peak is None else peak / (4 * B * n * T)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--shape", type=int, nargs=3, default=(500, 128, 784), help="B, n, T")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=[*NETWORKS])
    parser.add_argument("-o", "--output", type=Path, help="write the numbers as JSON too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(5544)
    rows = []
    for name in options.networks:
        row = measure(name, tuple(options.shape), options.device, options.repeat)
        show_row(name, row)
        rows.append(row)
    write(options.output, machine(options.device, repeat=options.repeat), rows)


if __name__ == "__main__":
    main()
