"""Recurrent matrices: their eigenvalues, their singular values, how orthogonal they are."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cayley.diagnostics.orthogonality import Normalisation, Spectrum
from cayley.diagnostics.plots.axes import make_axes, to_numbers
from cayley.parametrizations.eigenvalue.dominant import Event

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "plot_angles",
    "plot_matrix",
    "plot_normalisation",
    "plot_orthogonality",
    "plot_singular_values",
    "plot_spectrum",
]


def plot_spectrum(spectrum: Spectrum, axes: "Axes | None" = None) -> "Axes":
    """Eigenvalues in the complex plane, with the unit circle.

    Arguments:
        spectrum: As :func:`~cayley.diagnostics.spectrum` returns it.
        axes: Where to draw.
    """
    axes = make_axes(axes)
    angle = torch.linspace(0, 2 * math.pi, 200)
    axes.plot(to_numbers(angle.cos()), to_numbers(angle.sin()), color="gray", linewidth=0.8)
    values = spectrum.eigenvalues.flatten()
    axes.plot(to_numbers(values.real), to_numbers(values.imag), ".")
    axes.set(xlabel="Re λ", ylabel="Im λ", aspect="equal")
    return axes


def plot_angles(angles: Tensor, axes: "Axes | None" = None) -> "Axes":
    """The angles of D as a histogram around the circle.

    Arguments:
        angles: The angles of one matrix from :func:`~cayley.diagnostics.scaling_angles`, (n).
        axes: Where to draw, in polar coordinates.
    """
    axes = make_axes(axes, projection="polar")
    axes.hist(to_numbers(angles.flatten()), bins=36, range=(0, 2 * math.pi))
    return axes


def plot_singular_values(spectra: Mapping[str, Spectrum], axes: "Axes | None" = None) -> "Axes":
    """Singular values in decreasing order, a line for each matrix.

    Arguments:
        spectra: As :func:`~cayley.diagnostics.spectra` returns them, by name.
        axes: Where to draw.
    """
    axes = make_axes(axes)
    for name, one in spectra.items():
        axes.plot(to_numbers(one.singular_values.flatten()), ".-", label=name)
    axes.set(xlabel="k", ylabel="σ_k")
    axes.legend()
    return axes


def plot_orthogonality(errors: Mapping[str, Tensor], axes: "Axes | None" = None) -> "Axes":
    """‖W*W − I‖_F, a bar for each matrix.

    Arguments:
        errors: As :func:`~cayley.diagnostics.orthogonality_errors` returns them, by name.
        axes: Where to draw.
    """
    axes = make_axes(axes)
    # a logarithmic axis cannot show an error of exactly 0
    values = [max(float(error), 1e-18) for error in errors.values()]
    axes.barh([*errors], values, log=True)
    axes.set(xlabel="‖W*W − I‖_F")
    return axes


def plot_matrix(W: Tensor, axes: "Axes | None" = None) -> "Axes":
    """The entries of a matrix; their moduli if it is complex.

    Arguments:
        W: A matrix, as from :func:`~cayley.diagnostics.recurrent_matrices`, (m, n).
        axes: Where to draw.
    """
    axes = make_axes(axes)
    values = W.abs() if W.is_complex() else W
    most = float(values.abs().max())
    image = axes.imshow(
        to_numbers(values), cmap="RdBu", vmin=-most, vmax=most, interpolation="nearest"
    )
    axes.figure.colorbar(image, ax=axes)
    return axes


def plot_normalisation(found: Normalisation, axes: "Axes | None" = None) -> "Axes":
    """How often each event of an eigenvalue normalisation has happened; ρ(T) in the title.

    Arguments:
        found: One of the values of :func:`~cayley.diagnostics.eigenvalue_normalisation`.
        axes: Where to draw.
    """
    axes = make_axes(axes)
    axes.barh([event.name.lower() for event in Event], found.events.tolist())
    state = "normalised" if found.latched else "not yet normalised"
    axes.set(xlabel="times", title=f"ρ(T) = {float(found.radius):.4g}, {state}")
    return axes
