"""A matrix divided by its spectral radius, and how its dominant eigenvalue is tracked.

The definition is one line, ``T / torch.linalg.eigvals(T).abs().max()``. But a full decomposition in
every training step takes 84 % of the time of a step, for an ENRNN of 310 + 720 units on an H200;
tracking the dominant eigenpair from step to step takes 9 %. That is why there is more here than the
definition:

- :mod:`~.eigenvalue.normalization` has the map, its latch and its gradient;
- :mod:`~.eigenvalue.dominant` has the operator that finds the eigenpair and waits for the result;
- :mod:`~.eigenvalue.subspace` has the iteration that it uses;
- :mod:`~.eigenvalue.ritz` tells from small matrices which eigenvalue is the largest;
- :mod:`~.eigenvalue.tracker` does the same on a GPU without waiting.
"""

from cayley.parametrizations.eigenvalue.normalization import (
    EigenvalueNormalization,
    spectral_radius,
)

__all__ = ["EigenvalueNormalization", "spectral_radius"]
