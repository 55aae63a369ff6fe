"""|W| of products of l Householder reflections, n = 24."""

import torch
from _style import figure
from matplotlib.figure import Figure

import cayley


def draw() -> Figure:
    picture, row = figure(3, size=(8, 3))
    for axes, l in zip(row, (1, 4, 24), strict=True):  # noqa: E741
        torch.manual_seed(0)
        W = cayley.ORNN(1, 24, reflections=l).weight_hh_l0.detach()
        image = axes.imshow(W.abs().numpy(), vmin=0, vmax=1, cmap="Blues")
        axes.set_title(f"l = {l}: {l * 24 - l * (l - 1) // 2} numbers", fontsize=10)
        axes.set_xticks([])
        axes.set_yticks([])
    picture.colorbar(image, ax=row, label="|w_ij|", shrink=0.8)
    return picture
