"""Recurrent networks with orthogonal and unitary weights, as drop-in ``torch.nn`` layers."""

from cayley import activations, initializers, optim, parametrizations, recurrences
from cayley.activations import ModReLU, modrelu
from cayley.layers import (
    EURNN,
    NCGRU,
    ORNN,
    RNN,
    URNN,
    ExpRNN,
    FullURNN,
    ScoRNN,
    ScuRNN,
    SpectralRNN,
)
from cayley.optim import parameter_groups
from cayley.parametrizations import orthogonal_

__version__ = "0.1.0.dev0"

__all__ = [
    "EURNN",
    "NCGRU",
    "ORNN",
    "RNN",
    "URNN",
    "ExpRNN",
    "FullURNN",
    "ModReLU",
    "ScoRNN",
    "ScuRNN",
    "SpectralRNN",
    "activations",
    "initializers",
    "modrelu",
    "optim",
    "orthogonal_",
    "parameter_groups",
    "parametrizations",
    "recurrences",
]
