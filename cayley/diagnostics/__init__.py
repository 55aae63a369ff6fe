"""What goes on inside networks: functions that return tensors, and a recorder of their results.

:mod:`cayley.diagnostics.plots` draws them, with matplotlib.
"""

from cayley.diagnostics.activations import Surface, activation_surface, complex_grid
from cayley.diagnostics.costs import NeumannStudy, formation_seconds, neumann_errors
from cayley.diagnostics.curvature import (
    Conditioning,
    LayerConditioning,
    condition_numbers,
    gauss_newton_product,
    hessian_product,
)
from cayley.diagnostics.gradients import (
    StateGradients,
    gradient_norms,
    run_gradients,
    state_gradients,
)
from cayley.diagnostics.jacobian import jacobian_heatmap, jacobians
from cayley.diagnostics.krylov import Ritz, condition_number, lanczos
from cayley.diagnostics.orthogonality import (
    Normalisation,
    Spectrum,
    eigenvalue_normalisation,
    orthogonality_error,
    orthogonality_errors,
    recurrent_matrices,
    scaling_angles,
    spectra,
    spectrum,
)
from cayley.diagnostics.recorder import DIAGNOSTICS, Diagnostic, Record, Recorder
from cayley.diagnostics.runs import LayerRun, watched
from cayley.diagnostics.states import (
    Moments,
    count_nonfinite,
    first_nonfinite,
    hidden_statistics,
    moments,
    nonfinite_counts,
    run_statistics,
)

__all__ = [
    "DIAGNOSTICS",
    "Conditioning",
    "Diagnostic",
    "LayerConditioning",
    "LayerRun",
    "Moments",
    "NeumannStudy",
    "Normalisation",
    "Record",
    "Recorder",
    "Ritz",
    "Spectrum",
    "StateGradients",
    "Surface",
    "activation_surface",
    "complex_grid",
    "condition_number",
    "condition_numbers",
    "count_nonfinite",
    "eigenvalue_normalisation",
    "first_nonfinite",
    "formation_seconds",
    "gauss_newton_product",
    "gradient_norms",
    "hessian_product",
    "hidden_statistics",
    "jacobian_heatmap",
    "jacobians",
    "lanczos",
    "moments",
    "neumann_errors",
    "nonfinite_counts",
    "orthogonality_error",
    "orthogonality_errors",
    "recurrent_matrices",
    "run_gradients",
    "run_statistics",
    "scaling_angles",
    "spectra",
    "spectrum",
    "state_gradients",
    "watched",
]
