"""Time of forward and backward as n, T and B grow, one at a time, with a picture.

    python benchmarks/scaling.py [--device cpu] [--threads 1] [-o FILE.json]

The picture lies beside the file, as PNG. As in ``networks.py``, which this uses, no speed is
reported before the equality check of its shape.
"""

import argparse
from pathlib import Path

import matplotlib
import torch
from measure import machine, write
from networks import measure

matplotlib.use("Agg")
from matplotlib import pyplot as plt

NETWORKS = ["nn.RNN(relu)", "nn.GRU", "nn.LSTM", "ScoRNN", "NCGRU", "LSTM", "LSTM(layer)"]
BASE = {"B": 32, "n": 128, "T": 200}
CURVES = {
    "n": [32, 64, 128, 256, 512, 1024],
    "T": [25, 50, 100, 200, 400, 800],
    "B": [1, 4, 16, 32, 64, 128],
}


def draw(rows: list[dict], machine: dict[str, object], path: Path) -> None:
    """One panel for each curve; peers dashed."""
    figure, panels = plt.subplots(1, len(CURVES), figsize=(13, 4.4), layout="constrained")
    names = list(dict.fromkeys(row["network"] for row in rows))
    for panel, axis in zip(panels, CURVES, strict=True):
        for name in names:
            points = [r for r in rows if r["curve"] == axis and r["network"] == name]
            peer = name.startswith("nn.") or "loop" in name or name == "floor"
            panel.loglog(
                [row[axis] for row in points],
                [row["milliseconds"] for row in points],
                label=name,
                linestyle="--" if peer else "-",
                marker="." if peer else "o",
                linewidth=1.2 if peer else 2,
                color="black" if name == "floor" else None,
            )
        others = ", ".join(f"{key} = {value}" for key, value in BASE.items() if key != axis)
        panel.set(xlabel=f"{axis}   ({others})", ylabel="forward + backward, ms")
        panel.grid(alpha=0.3)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", frameon=False)
    figure.suptitle(
        f"{machine['machine']}, {machine['threads']} thread(s), torch {machine['torch']}"
    )
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path, default=Path("out/scaling.json"))
    options = parser.parse_args()
    options.networks, options.compile = NETWORKS, False
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(5544)
    rows = []
    for axis, values in CURVES.items():
        for value in values:
            shape = {**BASE, axis: value}
            found = measure((shape["B"], shape["n"], shape["T"]), options)
            # one loop is enough to see what loops cost
            found = [r for r in found if "loop" not in r["network"] or "ScoRNN" in r["network"]]
            rows += [{"curve": axis, **row} for row in found]
            print(
                axis, value, {r["network"]: round(r["milliseconds"], 1) for r in found}, flush=True
            )
    about = machine(options.device, precision="float32", repeat=options.repeat)
    write(options.output, about, rows)
    draw(rows, about, options.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
