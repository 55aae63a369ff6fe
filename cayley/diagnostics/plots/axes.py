"""Where to draw, and values as matplotlib takes them."""

from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["make_axes", "to_numbers"]


def make_axes(axes: "Axes | None", **options: Any) -> "Axes":
    """The given axes, or those of a new figure."""
    if axes is not None:
        return axes
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "expected matplotlib for the plots of cayley.diagnostics, found none: "
            "pip install matplotlib, or pip install 'cayley[lab]'"
        ) from error
    _, axes = pyplot.subplots(layout="constrained", subplot_kw=options)
    return axes


def to_numbers(values: Tensor) -> Any:
    """Values as matplotlib takes them."""
    return values.detach().cpu().resolve_conj().numpy()
