"""Surfaces and curves of activations."""

from typing import TYPE_CHECKING, Any

from torch import Tensor

from cayley.diagnostics.activations import Surface
from cayley.diagnostics.plots.axes import make_axes, to_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_surface"]


def plot_surface(
    z: Tensor, surface: Surface, axes: "Axes | None" = None, *, of: str = "value"
) -> "Axes":
    """The modulus of an activation, or of a derivative of it, over the complex plane.

    Arguments:
        z: The points, as :func:`~cayley.diagnostics.complex_grid` makes them; real ones give a
            curve.
        surface: As :func:`~cayley.diagnostics.activation_surface` returns it.
        axes: Where to draw; three-dimensional for a surface.
        of: ``"value"``, ``"d_z"`` or ``"d_conj"``.
    """
    values = surface._asdict().get(of)
    if values is None:
        raise ValueError(f"expected one of {_present(surface)} for this surface, got {of!r}")
    if not z.is_complex():
        axes = make_axes(axes)
        axes.plot(to_numbers(z), to_numbers(values))
        axes.set(xlabel="z", ylabel=of)
        return axes
    solid: Any = make_axes(axes, projection="3d")
    solid.plot_surface(
        to_numbers(z.real), to_numbers(z.imag), to_numbers(values.abs()), cmap="viridis"
    )
    solid.set(xlabel="Re z", ylabel="Im z")
    solid.set_zlabel({"value": "|σ|", "d_z": "|∂σ/∂z|", "d_conj": "|∂σ/∂z̄|"}[of])
    return solid


def _present(surface: Surface) -> list[str]:
    return [name for name, values in surface._asdict().items() if values is not None]
