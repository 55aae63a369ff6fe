"""Left: modReLU over the reals. Right: its gain on complex numbers near 0."""

import torch
from _style import COLORS, figure, tidy
from matplotlib.figure import Figure

import cayley
from cayley.activations import EPSILON


def draw() -> Figure:
    picture, (left, right) = figure(2, size=(8.4, 3.4))
    z = torch.linspace(-2, 2, 801)
    for b, color in zip((-0.5, 0.0, 0.5), COLORS, strict=False):
        y = cayley.modrelu(z, torch.tensor(b))
        # no line over the jump
        y = y.masked_fill(z.abs() < 1e-6, torch.nan) if b > 0 else y
        left.plot(z, y, color=color, label=f"b = {b}")
    tidy(left, xlabel="z", ylabel="modReLU(z)")
    left.legend(frameon=False)
    r = torch.logspace(-5, 0, 200)
    for b, color in zip((-0.05, 0.01, 0.1, 0.5), COLORS, strict=True):
        h = cayley.modrelu(torch.complex(r, torch.zeros(())), torch.tensor(b)).abs()
        right.loglog(r, (h / r).clamp(min=1e-3), color=color, label=f"b = {b}")
    tidy(right, xlabel="|z|", ylabel="|σ(z)| / |z|, complex", ylim=(3e-3, 400))
    right.set_title(f"ε = {EPSILON:g}", fontsize=10)
    right.legend(frameon=False)
    return picture
