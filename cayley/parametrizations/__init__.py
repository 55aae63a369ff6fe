"""Structured matrices: pure functions, and modules in torch's parametrisation protocol."""

from cayley.parametrizations.cayley import ScaledCayley, scaled_cayley
from cayley.parametrizations.cayley_complex import ComplexScaledCayley
from cayley.parametrizations.composition import UnitaryComposition, compose
from cayley.parametrizations.eigenvalue import EigenvalueNormalization, spectral_radius
from cayley.parametrizations.exponential import MatrixExponential, matrix_exponential
from cayley.parametrizations.gates import GateMatrices
from cayley.parametrizations.givens import (
    GivensLayers,
    apply_rotations,
    fft_pattern,
    rotate,
    tunable_pattern,
)
from cayley.parametrizations.householder import HouseholderProduct, householder_product
from cayley.parametrizations.long_short import LongShort, long_short
from cayley.parametrizations.neumann import NeumannCayley, neumann_update
from cayley.parametrizations.orthogonal import MAPS, orthogonal_
from cayley.parametrizations.parametrization import Parametrization
from cayley.parametrizations.polar import polar, refine
from cayley.parametrizations.signature import small_cayley
from cayley.parametrizations.skew import Skew, SkewHermitian, skew_hermitian, skew_symmetric
from cayley.parametrizations.stiefel import StiefelPoint
from cayley.parametrizations.structured import StructuredMatrix
from cayley.parametrizations.svd import SpectralSVD, spectral_svd

__all__ = [
    "MAPS",
    "ComplexScaledCayley",
    "EigenvalueNormalization",
    "GateMatrices",
    "GivensLayers",
    "HouseholderProduct",
    "LongShort",
    "MatrixExponential",
    "NeumannCayley",
    "Parametrization",
    "ScaledCayley",
    "Skew",
    "SkewHermitian",
    "SpectralSVD",
    "StiefelPoint",
    "StructuredMatrix",
    "UnitaryComposition",
    "apply_rotations",
    "compose",
    "fft_pattern",
    "householder_product",
    "long_short",
    "matrix_exponential",
    "neumann_update",
    "orthogonal_",
    "polar",
    "refine",
    "rotate",
    "scaled_cayley",
    "skew_hermitian",
    "skew_symmetric",
    "small_cayley",
    "spectral_radius",
    "spectral_svd",
    "tunable_pattern",
]
