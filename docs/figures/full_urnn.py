"""Loss of unitarity: the multiplicative step of the paper, the same refined, and ScoRNN."""

import torch
from _style import BLUE, GREEN, RED, figure, tidy
from matplotlib.figure import Figure
from torch.optim import Optimizer

import cayley
from cayley.diagnostics import orthogonality_error
from cayley.optim import StiefelSGD

N, STEPS = 32, 400


def errors(layer: cayley.RNN, optimizer: Optimizer) -> list[float]:
    """‖W*W − I‖ after each step along random gradients."""
    found = []
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        optimizer.zero_grad()
        W = layer.weight_hh_l0
        G = torch.randn(W.shape, generator=generator, dtype=W.dtype)
        (W * G).abs().sum().backward() if W.is_complex() else (W * G).sum().backward()
        optimizer.step()
        with torch.no_grad():
            found.append(float(orthogonality_error(layer.weight_hh_l0)))
    return found


def draw() -> Figure:
    picture, axes = figure()
    for name, refine, color in (("as printed", False, RED), ("refined", True, GREEN)):
        torch.manual_seed(0)
        layer = cayley.FullURNN(1, N)
        groups = cayley.parameter_groups(layer, lr=1e-3, recurrent_lr=1e-2)
        found = errors(layer, StiefelSGD(groups, lr=1e-3, refine=refine))
        axes.loglog(range(1, STEPS + 1), found, color=color, label=f"FullURNN, {name}")
    torch.manual_seed(0)
    layer = cayley.ScoRNN(1, N)
    found = errors(layer, torch.optim.SGD(layer.parameters(), lr=1e-2))
    axes.loglog(range(1, STEPS + 1), found, color=BLUE, label="ScoRNN")
    tidy(axes, xlabel="optimiser step", ylabel="‖W*W − I‖, float32", ylim=(1e-7, 1e-3))
    axes.legend(frameon=False)
    return picture
