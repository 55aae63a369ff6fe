"""Left: entries that a plane rotation needs. Right: eigenvalues of W as ScoRNN draws them."""

import numpy as np
import torch
from _style import BLUE, GREEN, ORANGE, circle, eigenvalues, figure, tidy
from matplotlib.figure import Figure

import cayley
from cayley.parametrizations import small_cayley


def draw() -> Figure:
    picture, (left, right) = figure(2, size=(8.4, 3.6), width_ratios=(3, 2))
    angles = np.linspace(0.01, np.pi - 0.01, 300)
    left.semilogy(angles, np.tan(angles / 2), color=ORANGE, label="Cayley, D = I")
    left.semilogy(angles, angles, color=GREEN, label="exponential")
    scaled = []
    for angle in angles:
        c, s = np.cos(angle), np.sin(angle)
        A, _ = small_cayley(torch.tensor([[c, -s], [s, c]], dtype=torch.float64))
        scaled.append(max(float(A.abs().max()), 1e-3))
    left.semilogy(angles, scaled, color=BLUE, label="scaled Cayley, D chosen")
    tidy(left, xlabel="angle of the rotation", ylabel="largest |a_ij|", ylim=(5e-3, 300))
    left.legend(frameon=False)
    torch.manual_seed(1)
    circle(right)
    for ones, color in ((0, ORANGE), (20, BLUE)):
        layer = cayley.ScoRNN(1, 40, negative_ones=ones)
        eigenvalues(right, layer.weight_hh_l0, color=color, label=f"ρ = {ones}")
    tidy(right, title="eigenvalues at the start")
    right.legend(frameon=False, loc="center")
    return picture
