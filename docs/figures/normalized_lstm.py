"""What normalisation does to a step that is ten times as large as the others."""

import torch
from _style import BLUE, GREEN, GREY, ORANGE, figure, tidy
from matplotlib.figure import Figure

import cayley

T, H = 60, 32


def draw() -> Figure:
    picture, axes = figure()
    torch.manual_seed(0)
    a = torch.randn(T, 1, H)
    a[30] *= 10
    axes.plot(a.norm(dim=-1), color=GREY, linestyle="--", label="as it comes")
    for K, name, color in (
        (1, "LN (K = 1)", ORANGE),
        (5, "ATN, K = 5", GREEN),
        (25, "ATN, K = 25", BLUE),
    ):
        norm = cayley.AssortedTimeNorm(H, window=K, affine=False)
        axes.plot(norm(a).norm(dim=-1), color=color, label=name)
    tidy(axes, xlabel="step t", ylabel="norm of the step")
    axes.legend(frameon=False)
    return picture
