"""A matrix divided by its spectral radius, and how its dominant eigenvalue is followed.

The definition is one line, ``T / torch.linalg.eigvals(T).abs().max()``. But a full decomposition at
every step of the training takes 84 % of the time of a step, for an ENRNN of 310 + 720 units on an
H200; following the dominant eigenpair from step to step takes 9 %. That is why there is more here
than the definition:

- :mod:`~.eigenvalue.normalization` has the map, its latch and its gradient;
- :mod:`~.eigenvalue.dominant` the operator that finds the eigenpair, and waits for its answer;
- :mod:`~.eigenvalue.subspace` the iteration by which it does;
- :mod:`~.eigenvalue.tracker` what a GPU does without waiting.
"""

from cayley.parametrizations.eigenvalue.normalization import (
    EigenvalueNormalization,
    spectral_radius,
)

__all__ = ["EigenvalueNormalization", "spectral_radius"]
