"""The cost of forming matrices, and the error of Neumann series."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from cayley.diagnostics.costs import NeumannStudy
from cayley.diagnostics.plots.axes import make_axes, to_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_formation_seconds", "plot_neumann"]


def plot_formation_seconds(
    seconds: Tensor, names: Sequence[str], sizes: Sequence[int], axes: "Axes | None" = None
) -> "Axes":
    """Time to form W over n, a line for each parametrisation.

    Arguments:
        seconds: As :func:`~cayley.diagnostics.formation_seconds` returns them, (maps, sizes).
        names: The names of the maps.
        sizes: The n.
        axes: Where to draw.
    """
    axes = make_axes(axes)
    for name, row in zip(names, seconds, strict=True):
        axes.loglog(sizes, to_numbers(1e3 * row), "o-", label=name)
    axes.set(xlabel="n", ylabel="ms")
    axes.legend()
    return axes


def plot_neumann(
    study: NeumannStudy, orders: Sequence[int] = (1, 2, 3), axes: "Axes | None" = None
) -> "Axes":
    """The error of the running inverse over the steps, a line for each order with its time.

    Arguments:
        study: As :func:`~cayley.diagnostics.neumann_errors` returns it.
        orders: The orders of the series.
        axes: Where to draw.
    """
    axes = make_axes(axes)
    for order, errors, seconds in zip(orders, study.errors, study.seconds, strict=True):
        share = float(seconds / study.exact_seconds)
        label = f"order {order}, {share:.2g} of the time of an inverse"
        axes.semilogy(to_numbers(errors), label=label)
    axes.set(xlabel="step", ylabel="‖Ã − (I + A)⁻¹‖_F")
    axes.legend()
    return axes
