"""Singular values of W after 100 steps that pull W towards 0, for margins r."""

import torch
from _style import COLORS, figure, tidy
from matplotlib.figure import Figure

import cayley


def draw() -> Figure:
    picture, axes = figure()
    for r, color in zip((0.01, 0.1, 0.3), COLORS, strict=False):
        torch.manual_seed(0)
        layer = cayley.SpectralRNN(1, 48, reflections=16, margin=r)
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
        weights = torch.rand(48, 48)
        for _ in range(100):
            optimizer.zero_grad()
            (weights * layer.weight_hh_l0.square()).sum().backward()
            optimizer.step()
        sigma = torch.linalg.svdvals(layer.weight_hh_l0.detach())
        axes.plot(sigma, "o", markersize=3, color=color, label=f"r = {r}")
        axes.axhspan(1 - r, 1 + r, color=color, alpha=0.08)
    tidy(axes, xlabel="index", ylabel="singular value of W")
    axes.legend(frameon=False)
    return picture
