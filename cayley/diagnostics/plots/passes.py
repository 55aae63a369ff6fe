"""Forward and backward passes: states, gradients of a loss, values that are not finite."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cayley.diagnostics.plots.axes import make_axes, to_numbers
from cayley.diagnostics.states import Moments

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "plot_gradient_norms",
    "plot_heatmap",
    "plot_moments",
    "plot_nonfinite",
    "plot_norms",
]


def plot_gradient_norms(norms: Mapping[str, Tensor], axes: "Axes | None" = None) -> "Axes":
    """‖∂L/∂h_t‖ over t, averaged over the batch, a line for each recurrence.

    Arguments:
        norms: As :func:`~cayley.diagnostics.gradient_norms` returns them, (T + 1, B) or (T + 1).
        axes: Where to draw.
    """
    axes = make_axes(axes)
    for name, values in norms.items():
        axes.semilogy(to_numbers(values.nanmean(1) if values.dim() == 2 else values), label=name)
    axes.set(xlabel="t", ylabel="‖∂L/∂h_t‖")
    axes.legend()
    return axes


def plot_heatmap(heatmap: Tensor, axes: "Axes | None" = None) -> "Axes":
    """‖∂h_τ/∂x_t‖, t to the right and τ downwards.

    Arguments:
        heatmap: As :func:`~cayley.diagnostics.jacobian_heatmap` returns it, (S, T).
        axes: Where to draw.
    """
    axes = make_axes(axes)
    image = axes.imshow(to_numbers(heatmap), aspect="auto")
    axes.figure.colorbar(image, ax=axes, label="‖∂h_τ/∂x_t‖₂")
    axes.set(xlabel="t", ylabel="τ")
    return axes


def plot_moments(moments: Mapping[str, Moments], axes: "Axes | None" = None) -> "Axes":
    """Means over time with a band of one standard deviation, averaged over the batch.

    Arguments:
        moments: Some of what :func:`~cayley.diagnostics.hidden_statistics` returns, by name.
        axes: Where to draw.
    """
    axes = make_axes(axes)
    for name, one in moments.items():
        mean, deviation = one.mean.nanmean(1), one.variance.nanmean(1).sqrt()
        axes.plot(to_numbers(mean), label=name)
        steps = to_numbers(torch.arange(len(mean)))
        axes.fill_between(
            steps, to_numbers(mean - deviation), to_numbers(mean + deviation), alpha=0.2
        )
    axes.set(xlabel="t", ylabel="mean ± standard deviation over the units")
    axes.legend()
    return axes


def plot_norms(moments: Mapping[str, Moments], axes: "Axes | None" = None) -> "Axes":
    """Euclidean norms over time, averaged over the batch.

    Arguments:
        moments: Some of what :func:`~cayley.diagnostics.hidden_statistics` returns, by name.
        axes: Where to draw.
    """
    axes = make_axes(axes)
    for name, one in moments.items():
        axes.plot(to_numbers(one.norm.nanmean(1)), label=name)
    axes.set(xlabel="t", ylabel="norm over the units")
    axes.legend()
    return axes


def plot_nonfinite(counts: Mapping[str, Tensor], axes: "Axes | None" = None) -> "Axes":
    """How many values are inf or NaN, a bar for each parameter and gradient that has any.

    Arguments:
        counts: As :func:`~cayley.diagnostics.nonfinite_counts` returns them, by name.
        axes: Where to draw.
    """
    axes = make_axes(axes)
    found = {name: int(count) for name, count in counts.items() if count}
    axes.barh([*found], [*found.values()])
    none = "" if found else f"all values of {len(counts)} tensors are finite"
    axes.set(xlabel="values that are not finite", title=none)
    return axes
