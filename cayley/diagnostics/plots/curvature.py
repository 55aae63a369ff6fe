"""The curvature of a loss."""

from typing import TYPE_CHECKING

from cayley.diagnostics.curvature import LayerConditioning
from cayley.diagnostics.krylov import Ritz
from cayley.diagnostics.plots.axes import make_axes, to_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_conditioning", "plot_ritz"]


def plot_conditioning(found: LayerConditioning, axes: "Axes | None" = None) -> "Axes":
    """The moduli of the eigenvalues of one layer's Hessian, with and without BNP.

    Arguments:
        found: As :func:`~cayley.diagnostics.condition_numbers` returns it.
        axes: Where to draw.
    """
    axes = make_axes(axes)
    for name, one in found._asdict().items():
        moduli = one.eigenvalues.abs().sort(descending=True).values
        axes.semilogy(to_numbers(moduli), ".-", label=f"{name}, κ = {float(one.condition):.3g}")
    axes.set(xlabel="k", ylabel="|λ_k|")
    axes.legend()
    return axes


def plot_ritz(found: Ritz, axes: "Axes | None" = None) -> "Axes":
    """Approximate eigenvalues with their error bounds.

    Arguments:
        found: As :func:`~cayley.diagnostics.lanczos` returns it.
        axes: Where to draw.
    """
    axes = make_axes(axes)
    values = to_numbers(found.values)
    axes.errorbar(range(len(values)), values, to_numbers(found.residuals), fmt=".", capsize=2)
    axes.set(xlabel="k", ylabel="λ_k")
    return axes
