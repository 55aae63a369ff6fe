"""A matrix divided by its spectral radius, and how its dominant eigenvalue is followed."""

from cayley.parametrizations.eigenvalue.normalization import (
    EigenvalueNormalization,
    spectral_radius,
)

__all__ = ["EigenvalueNormalization", "spectral_radius"]
