"""Structured matrices: pure functions, and modules in torch's parametrisation protocol."""

from cayley.parametrizations.cayley import ScaledCayley, scaled_cayley
from cayley.parametrizations.cayley_complex import ComplexScaledCayley
from cayley.parametrizations.parametrization import Parametrization
from cayley.parametrizations.polar import polar, refine
from cayley.parametrizations.signature import small_cayley
from cayley.parametrizations.skew import Skew, SkewHermitian, skew_hermitian, skew_symmetric
from cayley.parametrizations.structured import StructuredMatrix

__all__ = [
    "ComplexScaledCayley",
    "Parametrization",
    "ScaledCayley",
    "Skew",
    "SkewHermitian",
    "StructuredMatrix",
    "polar",
    "refine",
    "scaled_cayley",
    "skew_hermitian",
    "skew_symmetric",
    "small_cayley",
]
