"""Copying at T = 1000: test loss over training steps, three seeds each, from results/runs."""

from pathlib import Path

import numpy as np
from _style import BLUE, GREY, RED, figure, tidy
from matplotlib.figure import Figure

from cayley.lab.runs import find_runs, read_metrics

RUNS = Path(__file__).parent.parent.parent / "results" / "runs"
BASELINE = 10 * np.log(8) / 1020


def curves(recipe: str) -> list[np.ndarray]:
    """(step, cross entropy) of the evaluations of each seed."""
    found = []
    for folder in sorted(find_runs(RUNS / recipe)):
        points = [
            (record["step"], record["scores"]["test"]["cross_entropy"])
            for record in read_metrics(folder)
            if record["kind"] == "eval"
        ]
        found.append(np.array(points))
    return found


def draw() -> Figure:
    picture, axes = figure(size=(7, 3.4))
    for recipe, name, color in (
        ("lstm/copying-1000", "nn.LSTM, 68 units, 22k parameters", RED),
        ("scornn/copying-1000", "ScoRNN, 190 units, 22k parameters", BLUE),
    ):
        for number, curve in enumerate(curves(recipe)):
            label = name if number == 0 else None
            axes.semilogy(*curve.T, color=color, alpha=0.8, linewidth=1.2, label=label)
    axes.axhline(BASELINE, color=GREY, linestyle="--", linewidth=1)
    axes.text(10_000, BASELINE * 1.15, "remembering nothing", ha="right", color=GREY)
    tidy(axes, xlabel="training step", ylabel="test cross entropy", ylim=(5e-5, 4))
    axes.set_title("Copy ten symbols over 1000 steps: three seeds each", fontsize=11)
    axes.legend(frameon=False, loc="upper right")
    return picture
