"""Diagnostics over training steps."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from cayley.diagnostics.plots.axes import make_axes, to_numbers
from cayley.diagnostics.recorder import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_records"]


def plot_records(
    records: Mapping[str, Record], axes: "Axes | None" = None, *, log: bool = False
) -> "Axes":
    """Quantities over training steps.

    Arguments:
        records: Some of what :meth:`~cayley.diagnostics.Recorder.records` returns, by name. A
            quantity of several numbers gets a line for each; complex numbers are shown as moduli.
        axes: Where to draw.
        log: Whether the axis of the quantity is logarithmic.
    """
    axes = make_axes(axes)
    for name, (steps, values) in records.items():
        values = (values.abs() if values.is_complex() else values).to(torch.float64)
        lines = axes.plot(
            to_numbers(steps), to_numbers(values.flatten(1) if values.dim() > 1 else values)
        )
        lines[0].set_label(name)
    axes.set(xlabel="step", yscale="log" if log else "linear")
    axes.legend()
    return axes
