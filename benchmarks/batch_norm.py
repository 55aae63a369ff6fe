"""LSTMs with statistics over the batch beside those over the layer, and beside the loop, on a GPU.

    python benchmarks/batch_norm.py [--shapes 128,60,750] [--repeat 10] [--units 1 2] [-o FILE.json]

A shape is B, n and T. One run is a forward pass of two inputs and the gradients of all parameters,
as in gpu.py, with which this shares recurrences and checks: no speed is printed before outputs and
gradients have been compared with the loop in double precision. The loop is that of torch's
operations, which is what runs where there is no kernel. With --units, blocks of so many units are
timed too.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch
from gpu import busy, gated, gated_step, gradients, parameters
from measure import machine, rounds, write
from torch import Tensor

import cayley
from cayley.kernels.cuda.lstm import batch
from cayley.kernels.cuda.lstm.batch_layout import BatchLayout, best_batch_layout
from cayley.recurrences import NormSite, lstm

SHAPES = ((50, 60, 400), (50, 60, 750), (128, 60, 400), (128, 60, 750))
WINDOW = 25
COLUMNS = ("LN-LSTM, ms", "BN-LSTM, ms", "ATN over batch, ms", "loop, ms", "over LN", "loop over")


def over_batch(window: int, x: Tensor, U: Tensor, c: Tensor, W: Tensor, *norms: Tensor) -> Tensor:
    pairs = [NormSite(gamma, beta) for gamma, beta in zip(norms[::2], norms[1::2], strict=True)]
    sites: dict[str, Any] = dict(zip(("input", "recurrent", "cell"), pairs, strict=False))
    h0 = x.new_zeros(x.shape[1], W.shape[1])
    return lstm(x, h0, h0, W, U=U, c=c, **sites, window=window, over="batch").h


def by_loop(run: Callable[[], object]) -> None:
    with cayley.backend("reference"):
        run()


def with_units(units: int, run: Callable[[], object]) -> None:
    """By blocks of so many units."""

    def layout(*sizes: Any) -> BatchLayout | None:
        best = best_batch_layout(*sizes)
        return None if best is None else replace(best, units=units)

    batch.best_batch_layout = cast(Any, layout)
    try:
        run()
    finally:
        batch.best_batch_layout = best_batch_layout


def relative_error(found: tuple[Tensor, ...], exact: tuple[Tensor, ...]) -> float:
    """The largest relative error of a tensor.

    Some gradients, such as that of c, are 0 except for rounding: their error is relative to the
    largest tensor.
    """
    norms = [float(q.norm()) for q in exact]
    largest = max(norms)
    return max(
        float((p - q).norm()) / (norm if norm > 1e-6 * largest else largest)
        for p, q, norm in zip(found, exact, norms, strict=True)
    )


def measure(shape: tuple[int, int, int], units: list[int], repeat: int) -> dict[str, object]:
    B, n, T = shape
    x, g = torch.randn(T, B, 2, device="cuda"), torch.randn(T, B, n, device="cuda")
    layer, tensors = gated(n)["LN-LSTM"]
    functions = {
        "LN-LSTM": layer,
        "BN-LSTM": partial(over_batch, 1),
        "ATN over batch": partial(over_batch, WINDOW),
    }
    runs: dict[str, Callable[[], object]] = {}
    error = 0.0
    for name, function in functions.items():
        double = [v.double() for v in tensors]
        exact = gradients(function, x.double(), double, g.double(), "reference")
        ours, loop = (
            relative_error(gradients(function, x, tensors, g, backend), exact)
            for backend in ("cuda", "reference")
        )
        # rounding grows with the steps
        if not ours <= max(1e-4, 4 * loop):
            raise SystemExit(
                f"{name} is off by {ours:.1e} at {shape}, and the loop in float32 by {loop:.1e}: "
                "no speed is reported"
            )
        error = max(error, ours)
        runs[name] = partial(gated_step, function, x, parameters(tensors), g)
    runs |= {f"{number} units": partial(with_units, number, runs["BN-LSTM"]) for number in units}
    on_the_gpu = list(runs)
    runs["loop"] = partial(by_loop, runs["BN-LSTM"])
    times = {name: 1e3 * median(seconds) for name, seconds in rounds(runs, repeat, "cuda").items()}
    return {
        **{"B": B, "n": n, "T": T, "error": error},
        **{f"{name}, ms": time for name, time in times.items()},
        **{f"{name} on the GPU, ms": busy(runs[name]) for name in on_the_gpu},
        "over LN": times["BN-LSTM"] / times["LN-LSTM"],
        "loop over": times["loop"] / times["BN-LSTM"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", default=SHAPES, help="B,n,T of each")
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--units", type=int, nargs="+", default=[], help="of a block")
    parser.add_argument("-o", "--output", type=Path, help="write the numbers as JSON too")
    options = parser.parse_args()
    torch.manual_seed(5544)
    print(f"{'B':>4}{'n':>6}{'T':>6}{'error':>9}" + "".join(f"{c:>20}" for c in COLUMNS))
    rows = []
    for shape in options.shapes:
        B, n, T = map(int, shape.split(",")) if isinstance(shape, str) else shape
        row = measure((B, n, T), options.units, options.repeat)
        print(
            f"{B:4}{n:6}{T:6}{row['error']:9.0e}" + "".join(f"{row[c]:20.3f}" for c in COLUMNS),
            flush=True,
        )
        print("  on the GPU: " + ", ".join(f"{k} {v:.3f}" for k, v in row.items() if "on the" in k))
        rows.append(row)
    write(options.output, machine("cuda", repeat=options.repeat), rows)


if __name__ == "__main__":
    main()
