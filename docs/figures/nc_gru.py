"""Error of the inverse that follows A by Neumann series, never computed anew."""

import torch
from _style import COLORS, figure, tidy
from matplotlib.figure import Figure

from cayley.diagnostics import neumann_errors
from cayley.parametrizations import Skew

N, STEPS = 40, 200


def draw() -> Figure:
    picture, axes = figure()
    torch.manual_seed(0)
    skew = Skew(N)
    entries = skew.sample(dtype=torch.float64)[0]
    # steps of the size of Adam's at a rate of 1e-3
    walk = 1e-3 * torch.randn(STEPS, len(entries), dtype=torch.float64).sign().cumsum(0)
    path = torch.stack([skew(entries), *(skew(entries + step) for step in walk)])
    found = neumann_errors(path, repeat=1).errors
    for order, (errors, color) in enumerate(zip(found, COLORS, strict=False), 1):
        axes.semilogy(errors, color=color, label=f"order {order}")
    tidy(axes, xlabel="step", ylabel="error of the inverse of I + A")
    axes.legend(frameon=False)
    return picture
