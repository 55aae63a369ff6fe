"""Pictures of what the diagnostics return, with matplotlib, which is imported when they are drawn.

Every function draws into ``axes``, or into a figure of its own, and returns the axes.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cayley.diagnostics.activations import Surface
from cayley.diagnostics.costs import NeumannStudy
from cayley.diagnostics.curvature import LayerConditioning
from cayley.diagnostics.orthogonality import Spectrum
from cayley.diagnostics.recorder import Record
from cayley.diagnostics.states import Moments

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "plot_angles",
    "plot_conditioning",
    "plot_formation_seconds",
    "plot_gradient_norms",
    "plot_heatmap",
    "plot_moments",
    "plot_neumann",
    "plot_records",
    "plot_spectrum",
    "plot_surface",
]


def _axes(axes: "Axes | None", **options: Any) -> "Axes":
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


def _numbers(values: Tensor) -> Any:
    """Values as matplotlib takes them."""
    return values.detach().cpu().resolve_conj().numpy()


def plot_gradient_norms(norms: Mapping[str, Tensor], axes: "Axes | None" = None) -> "Axes":
    """‖∂L/∂h_t‖ over t, the mean over the batch, a line for each recurrence.

    Arguments:
        norms: As :func:`~cayley.diagnostics.gradient_norms` returns them, (T + 1, B) or (T + 1).
        axes: Where to draw.
    """
    axes = _axes(axes)
    for name, values in norms.items():
        axes.semilogy(_numbers(values.nanmean(1) if values.dim() == 2 else values), label=name)
    axes.set(xlabel="t", ylabel="‖∂L/∂h_t‖")
    axes.legend()
    return axes


def plot_heatmap(heatmap: Tensor, axes: "Axes | None" = None) -> "Axes":
    """‖∂h_τ/∂x_t‖, t to the right and τ downwards.

    Arguments:
        heatmap: As :func:`~cayley.diagnostics.jacobian_heatmap` returns it, (S, T).
        axes: Where to draw.
    """
    axes = _axes(axes)
    image = axes.imshow(_numbers(heatmap), aspect="auto")
    axes.figure.colorbar(image, ax=axes, label="‖∂h_τ/∂x_t‖₂")
    axes.set(xlabel="t", ylabel="τ")
    return axes


def plot_spectrum(spectrum: Spectrum, axes: "Axes | None" = None) -> "Axes":
    """Eigenvalues in the complex plane, with the unit circle.

    Arguments:
        spectrum: As :func:`~cayley.diagnostics.spectrum` returns it.
        axes: Where to draw.
    """
    axes = _axes(axes)
    angle = torch.linspace(0, 2 * math.pi, 200)
    axes.plot(_numbers(angle.cos()), _numbers(angle.sin()), color="gray", linewidth=0.8)
    values = spectrum.eigenvalues.flatten()
    axes.plot(_numbers(values.real), _numbers(values.imag), ".")
    axes.set(xlabel="Re λ", ylabel="Im λ", aspect="equal")
    return axes


def plot_angles(angles: Tensor, axes: "Axes | None" = None) -> "Axes":
    """The angles of D as a histogram around the circle.

    Arguments:
        angles: Those of :func:`~cayley.diagnostics.scaling_angles` for one matrix, (n).
        axes: Where to draw, in polar coordinates.
    """
    axes = _axes(axes, projection="polar")
    axes.hist(_numbers(angles.flatten()), bins=36, range=(0, 2 * math.pi))
    return axes


def plot_moments(moments: Mapping[str, Moments], axes: "Axes | None" = None) -> "Axes":
    """Means over time, each in a band of one standard deviation, the mean over the batch.

    Arguments:
        moments: Some of what :func:`~cayley.diagnostics.hidden_statistics` returns, by name.
        axes: Where to draw.
    """
    axes = _axes(axes)
    for name, one in moments.items():
        mean, deviation = one.mean.nanmean(1), one.variance.nanmean(1).sqrt()
        axes.plot(_numbers(mean), label=name)
        steps = _numbers(torch.arange(len(mean)))
        axes.fill_between(steps, _numbers(mean - deviation), _numbers(mean + deviation), alpha=0.2)
    axes.set(xlabel="t", ylabel="mean ± standard deviation over the units")
    axes.legend()
    return axes


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
        axes = _axes(axes)
        axes.plot(_numbers(z), _numbers(values))
        axes.set(xlabel="z", ylabel=of)
        return axes
    solid: Any = _axes(axes, projection="3d")
    solid.plot_surface(_numbers(z.real), _numbers(z.imag), _numbers(values.abs()), cmap="viridis")
    solid.set(xlabel="Re z", ylabel="Im z")
    solid.set_zlabel({"value": "|σ|", "d_z": "|∂σ/∂z|", "d_conj": "|∂σ/∂z̄|"}[of])
    return solid


def _present(surface: Surface) -> list[str]:
    return [name for name, values in surface._asdict().items() if values is not None]


def plot_conditioning(found: LayerConditioning, axes: "Axes | None" = None) -> "Axes":
    """The moduli of the eigenvalues of one layer's Hessian, with and without BNP.

    Arguments:
        found: As :func:`~cayley.diagnostics.condition_numbers` returns it.
        axes: Where to draw.
    """
    axes = _axes(axes)
    for name, one in found._asdict().items():
        moduli = one.eigenvalues.abs().sort(descending=True).values
        axes.semilogy(_numbers(moduli), ".-", label=f"{name}, κ = {float(one.condition):.3g}")
    axes.set(xlabel="k", ylabel="|λ_k|")
    axes.legend()
    return axes


def plot_formation_seconds(
    seconds: Tensor, names: Sequence[str], sizes: Sequence[int], axes: "Axes | None" = None
) -> "Axes":
    """Time to form W over n, a line for each parametrisation.

    Arguments:
        seconds: As :func:`~cayley.diagnostics.formation_seconds` returns them, (maps, sizes).
        names: Those of the maps.
        sizes: The n.
        axes: Where to draw.
    """
    axes = _axes(axes)
    for name, row in zip(names, seconds, strict=True):
        axes.loglog(sizes, _numbers(1e3 * row), "o-", label=name)
    axes.set(xlabel="n", ylabel="ms")
    axes.legend()
    return axes


def plot_neumann(
    study: NeumannStudy, orders: Sequence[int] = (1, 2, 3), axes: "Axes | None" = None
) -> "Axes":
    """The error of the running inverse over the steps, a line for each order with its time.

    Arguments:
        study: As :func:`~cayley.diagnostics.neumann_errors` returns it.
        orders: Those of the series.
        axes: Where to draw.
    """
    axes = _axes(axes)
    for order, errors, seconds in zip(orders, study.errors, study.seconds, strict=True):
        share = float(seconds / study.exact_seconds)
        label = f"order {order}, {share:.2g} of the time of an inverse"
        axes.semilogy(_numbers(errors), label=label)
    axes.set(xlabel="step", ylabel="‖Ã − (I + A)⁻¹‖_F")
    axes.legend()
    return axes


def plot_records(
    records: Mapping[str, Record], axes: "Axes | None" = None, *, log: bool = False
) -> "Axes":
    """Quantities over the steps of a training.

    Arguments:
        records: Some of what :meth:`~cayley.diagnostics.Recorder.records` returns, by name. Of a
            quantity of several numbers there is a line for each, of a complex one their moduli.
        axes: Where to draw.
        log: Whether the axis of the quantity is logarithmic.
    """
    axes = _axes(axes)
    for name, (steps, values) in records.items():
        values = (values.abs() if values.is_complex() else values).to(torch.float64)
        lines = axes.plot(
            _numbers(steps), _numbers(values.flatten(1) if values.dim() > 1 else values)
        )
        lines[0].set_label(name)
    axes.set(xlabel="step", yscale="log" if log else "linear")
    axes.legend()
    return axes
