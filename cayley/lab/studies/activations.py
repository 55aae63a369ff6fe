"""The study of modReLU near 0."""

import math
from typing import TYPE_CHECKING, Any

import torch

from cayley.diagnostics import activation_surface, complex_grid
from cayley.lab.studies.study import Measured, Settings, Study, make_panels
from cayley.lab.training import RunSettings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["MODRELU_SURFACE"]


def measure_surface(settings: Settings, seed: int, run: RunSettings) -> Measured:
    r"""How large :math:`|\partial \sigma_\epsilon / \partial \bar z|` is, and where."""
    b = settings["b"]
    radii = torch.logspace(-6, 0, settings["points"], dtype=torch.float64)
    slope = _slope(radii.to(torch.complex128), b)
    peak = int(slope.argmax())
    angles = torch.linspace(0, 2 * math.pi, 65, dtype=torch.float64)
    ring = _slope(torch.polar(radii[peak].expand_as(angles), angles), b)
    centre, half = _slope(torch.tensor([0.0, 0.5], dtype=torch.complex128), b)
    grid = complex_grid(settings["radius"], settings["grid"])
    return Measured(
        {
            "peak": float(slope[peak]),
            "peak_radius": float(radii[peak]),
            "peak_roundness": float(ring.min() / ring.max()),
            "centre_share": float(centre / slope[peak]),
            "half_share": float(half / slope[peak]),
        },
        (grid, activation_surface("modrelu", grid, b)),
    )


def _slope(z: torch.Tensor, b: float) -> torch.Tensor:
    found = activation_surface("modrelu", z, b).d_conj
    assert found is not None
    return found.abs()


def draw_surface(picture: Any, settings: Settings) -> "Figure":
    """The moduli of the activation and of its derivative."""
    from cayley.diagnostics.plots import plot_surface

    z, surface = picture
    figure, axes = make_panels(2, "3d")
    for one, of in zip(axes, ("value", "d_conj"), strict=True):
        solid: Any = plot_surface(z, surface, one, of=of)
        # room for the label on the right
        solid.set_box_aspect(None, zoom=0.85)
    return figure


MODRELU_SURFACE = Study(
    "modrelu-surface",
    "approximate modReLU near 0, and its derivative by the conjugate",
    measure_surface,
    draw_surface,
    {"b": 0.5, "radius": 0.05, "grid": 81, "points": 2001},
    {"grid": 11, "points": 201},
    random=False,
)
