"""‖∂L/∂h_t‖ over t for a loss at the last step, of networks as they are drawn."""

import torch
from _style import COLORS, figure, tidy
from matplotlib.figure import Figure
from torch import nn

import cayley
from cayley.diagnostics import gradient_norms

T, B, H = 300, 8, 64


def draw() -> Figure:
    picture, axes = figure()
    layers = {
        "RNN (tanh)": lambda: cayley.RNN(2, H),
        "LSTM": lambda: cayley.LSTM(2, H),
        "LSTM, forget bias 4": lambda: cayley.LSTM(2, H, forget_bias=4.0),
        "ScoRNN": lambda: cayley.ScoRNN(2, H),
    }
    for (name, make), color in zip(layers.items(), (*COLORS[1:], COLORS[0]), strict=True):
        torch.manual_seed(0)
        model = nn.ModuleDict({"layer": make(), "head": nn.Linear(H, 1)}).double()
        x = torch.rand(T, B, 2, dtype=torch.float64)

        def loss(model: nn.ModuleDict = model, x: torch.Tensor = x) -> torch.Tensor:
            return (model["head"](model["layer"](x)[0][-1]) - 1).square().mean()

        (norms,) = gradient_norms(model, loss).values()
        mean = norms.mean(1)
        style = "--" if name == "LSTM" else "-"
        axes.semilogy((mean / mean[-1]).clamp(min=1e-18), style, label=name, color=color)
    tidy(axes, xlabel="step t", ylabel="‖∂L/∂h_t‖ / ‖∂L/∂h_T‖", ylim=(1e-18, 1e2))
    axes.legend(frameon=False)
    return picture
