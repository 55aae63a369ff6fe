"""Plots of what the diagnostics return, with matplotlib, which is imported when needed.

Every function draws into ``axes``, or into a figure of its own, and returns the axes.

============================ =====================================================
``plot_gradient_norms``      ``gradient_norms``, ``state_gradients``, ``run_gradients``
``plot_heatmap``             ``jacobian_heatmap``, ``jacobians``
``plot_moments``             ``hidden_statistics``, ``run_statistics``, ``moments``
``plot_norms``               the same, their norms
``plot_nonfinite``           ``nonfinite_counts``, ``count_nonfinite``
``plot_spectrum``            ``spectrum``
``plot_singular_values``     ``spectra``
``plot_orthogonality``       ``orthogonality_errors``, ``orthogonality_error``
``plot_matrix``              ``recurrent_matrices``
``plot_angles``              ``scaling_angles``
``plot_normalisation``       ``eigenvalue_normalisation``
``plot_surface``             ``activation_surface`` over ``complex_grid``
``plot_conditioning``        ``condition_numbers``
``plot_ritz``                ``lanczos``, ``condition_number``
``plot_formation_seconds``   ``formation_seconds``
``plot_neumann``             ``neumann_errors``
``plot_records``             ``Recorder``
============================ =====================================================
"""

from cayley.diagnostics.plots.activations import plot_surface
from cayley.diagnostics.plots.costs import plot_formation_seconds, plot_neumann
from cayley.diagnostics.plots.curvature import plot_conditioning, plot_ritz
from cayley.diagnostics.plots.matrices import (
    plot_angles,
    plot_matrix,
    plot_normalisation,
    plot_orthogonality,
    plot_singular_values,
    plot_spectrum,
)
from cayley.diagnostics.plots.passes import (
    plot_gradient_norms,
    plot_heatmap,
    plot_moments,
    plot_nonfinite,
    plot_norms,
)
from cayley.diagnostics.plots.records import plot_records

__all__ = [
    "plot_angles",
    "plot_conditioning",
    "plot_formation_seconds",
    "plot_gradient_norms",
    "plot_heatmap",
    "plot_matrix",
    "plot_moments",
    "plot_neumann",
    "plot_nonfinite",
    "plot_normalisation",
    "plot_norms",
    "plot_orthogonality",
    "plot_records",
    "plot_ritz",
    "plot_singular_values",
    "plot_spectrum",
    "plot_surface",
]
