"""Time of forward and backward as n, T and B grow, one at a time, with a picture.

    python benchmarks/scaling.py [--device cpu] [--threads 1] [-o FILE.json]

The picture lies beside the file, as PNG. As in ``networks.py``, which this uses, no speed is
reported before the equality check of its shape.
"""

import argparse
from pathlib import Path

import torch
from measure import machine, write
from networks import NETWORKS, measure
from pictures import STYLES, draw_curves

BASE = {"B": 32, "n": 128, "T": 200}
CURVES = {
    "n": [32, 64, 128, 256, 512, 1024],
    "T": [25, 50, 100, 200, 400, 800],
    "B": [1, 4, 16, 32, 64, 128],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path, default=Path("out/scaling.json"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(5544)
    names = [name for name in STYLES if name in NETWORKS]
    rows = []
    done: dict[tuple[int, int, int], list[dict]] = {}
    for axis, values in CURVES.items():
        for value in values:
            B, n, T = (BASE | {axis: value}).values()
            if (B, n, T) not in done:
                done[B, n, T] = measure(
                    (B, n, T),
                    names,
                    device=options.device,
                    repeat=options.repeat,
                    loops=["ScoRNN"],
                )
                told = ", ".join(f"{r['network']} {r['milliseconds']:.1f}" for r in done[B, n, T])
                print(f"B = {B}, n = {n}, T = {T}, ms: {told}", flush=True)
            rows += [{"curve": axis, **row} for row in done[B, n, T]]
    about = machine(options.device, precision="float32", repeat=options.repeat)
    write(options.output, about, rows)
    draw_curves(rows, about, options.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
