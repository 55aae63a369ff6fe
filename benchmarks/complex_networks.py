"""Networks of complex units beside the same with a real matrix of twice the size.

    python benchmarks/complex_networks.py [--device cuda] [--networks "URNN 512"] [--repeat 10]
        [-o FILE.json]

One run is a forward pass of one input and the gradients of all parameters, forming W included. A
kernel holds the real and imaginary parts of W once; *real* is the same layer with [[R, −C], [C, R]]
as any real matrix. Large uRNNs and EURNNs apply the factors of W; *matrix* is the same layer with
W, by its kernel or, where that has no room for W, as a loop of torch operations. No speed is
printed before outputs and gradients have been compared with the loop in double precision, with W.
For how much of the time a GPU computes is written beside it.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from unittest.mock import patch

import torch
from gpu import busy
from measure import Run, distance, machine, rounds, show_row, write
from torch import Tensor

import cayley
from cayley.layers import elman as layers

# B, T, and the steps that are compared
SIZES = (50, 784, 20)
NETWORKS: dict[str, tuple[Callable[..., cayley.RNN], int]] = {
    f"{make.__name__} {n}": (make, n)
    for make, n in (
        (cayley.ScuRNN, 116),
        (cayley.ScuRNN, 250),
        (cayley.FullURNN, 116),
        (cayley.FullURNN, 512),
        (cayley.URNN, 116),
        (cayley.URNN, 256),
        (cayley.URNN, 512),
        (cayley.URNN, 2170),
    )
}
NETWORKS |= {
    f"EURNN {n} {layers}": (partial(cayley.EURNN, layers=layers), n)
    for n in (32, 64, 128, 256, 512, 1024)
    for layers in (2, "fft")
}
BY_FACTORS = [n for n in NETWORKS if n.startswith(("URNN", "EURNN")) and n != "URNN 116"]

Step = Callable[[cayley.RNN, Tensor, Tensor], tuple[Tensor, ...]]


def gradients(layer: cayley.RNN, x: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    h = layer(x)[0]
    found = torch.autograd.grad(h, [*layer.parameters()], g)
    return h.detach(), *(torch.view_as_real(v) if v.is_complex() else v for v in found)


def as_real(layer: cayley.RNN, x: Tensor, g: Tensor) -> None:
    with patch.object(layer, "is_complex", False):
        gradients(layer, x, g)


def chosen(factors: bool, layer: cayley.RNN, x: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    """Gradients by the factors of W, or by W."""
    with (
        patch.object(layers, "prefers_factors", lambda _: factors),
        patch.object(layers, "prefers_rotations", lambda *_: factors),
    ):
        return gradients(layer, x, g)


by_factors: Step = partial(chosen, True)
by_matrix: Step = partial(chosen, False)


def check(name: str, layer: cayley.RNN, run: Step, x: Tensor, g: Tensor) -> float:
    """The largest relative error; raise if it is too large."""
    make, n = NETWORKS[name]
    double = make(1, n).to(x.device, torch.float64)
    double.load_state_dict(layer.state_dict())
    with cayley.backend("reference"):
        exact = by_matrix(double, x.double(), g.double())
    error = distance(run(layer, x, g), exact)
    if not error <= 1e-4:
        raise SystemExit(f"{name} is off by {error:.1e}: no speed is reported")
    return error


def measure(name: str, sizes: tuple[int, int, int], repeat: int, device: str) -> dict[str, object]:
    B, T, compared = sizes
    make, n = NETWORKS[name]
    layer = make(1, n).to(device)
    x, g = torch.rand(T, B, 1, device=device), torch.randn(T, B, 2 * n, device=device)
    factors = name in BY_FACTORS
    ours: Step = by_factors if factors else gradients
    error = check(name, layer, ours, x[:compared], g[:compared])
    peer, theirs = ("matrix", by_matrix) if factors else ("real", as_real)
    runs: dict[str, Run] = {"ours": partial(ours, layer, x, g), peer: partial(theirs, layer, x, g)}
    times = {key: 1e3 * median(own) for key, own in rounds(runs, repeat, device).items()}
    alone = {f"{key} on the GPU, ms": busy(run) for key, run in runs.items() if device == "cuda"}
    return {
        **{"network": name, "B": B, "T": T, "error": error},
        **{f"{key}, ms": time for key, time in times.items()},
        **alone,
        f"over {peer}": times[peer] / times["ours"],
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=[*NETWORKS])
    parser.add_argument("--sizes", type=int, nargs=3, default=SIZES, help="B, T, steps compared")
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("-o", "--output", type=Path, help="write the numbers as JSON too")
    options = parser.parse_args(arguments)
    torch.manual_seed(5544)
    rows = []
    for name in options.networks:
        row = measure(name, tuple(options.sizes), options.repeat, options.device)
        show_row(name, row)
        rows.append(row)
    write(options.output, machine(options.device, repeat=options.repeat), rows)


if __name__ == "__main__":
    main()
