"""What all figures share."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

# distinguishable also by people who do not see all colours
BLUE, ORANGE, GREEN, RED, GREY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#777777"
COLORS = (BLUE, ORANGE, GREEN, RED)


def figure(columns: int = 1, *, size: tuple[float, float] = (6.4, 3.4), **options: Any) -> Any:
    """A figure and its axes."""
    found = Figure(figsize=size, layout="constrained")
    return found, found.subplots(1, columns, **options)


def tidy(axes: Axes, **labels: Any) -> None:
    """Labels, a light grid, and no frame on the upper and right sides."""
    axes.set(**labels)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def circle(axes: Axes) -> None:
    """The unit circle, and equal scales."""
    angle = np.linspace(0, 2 * np.pi, 200)
    axes.plot(np.cos(angle), np.sin(angle), color=GREY, linewidth=0.8)
    axes.set_aspect("equal")


def eigenvalues(axes: Axes, W: Tensor, **options: Any) -> None:
    """The eigenvalues of a matrix in the complex plane."""
    found = np.linalg.eigvals(W.detach().numpy())
    axes.plot(found.real, found.imag, "o", markersize=4, **options)
