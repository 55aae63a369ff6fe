"""Eigenvalues of the matrices of ScoRNN and ScuRNN, as they are drawn."""

import torch
from _style import BLUE, ORANGE, circle, eigenvalues, figure, tidy
from matplotlib.figure import Figure

import cayley


def draw() -> Figure:
    picture, pair = figure(2, size=(7, 3.4))
    torch.manual_seed(0)
    layers = (
        ("ScoRNN, n = 60: pairs", cayley.ScoRNN(1, 60), BLUE),
        ("ScuRNN, n = 60: any set", cayley.ScuRNN(1, 60), ORANGE),
    )
    for axes, (title, layer, color) in zip(pair, layers, strict=True):
        circle(axes)
        eigenvalues(axes, layer.weight_hh_l0, color=color)
        tidy(axes, title=title)
    return picture
