"""Recurrent networks with orthogonal and unitary weights, as drop-in ``torch.nn`` layers."""

from cayley import (
    activations,
    initializers,
    layers,
    norms,
    optim,
    parametrizations,
    preconditioners,
    recurrences,
)
from cayley.activations import ModReLU, modrelu
from cayley.layers import (
    ENRNN,
    EURNN,
    LSTM,
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
from cayley.norms import AssortedTimeNorm
from cayley.optim import parameter_groups
from cayley.parametrizations import orthogonal_
from cayley.preconditioners import BNP
from cayley.recurrences import backend

__version__ = "0.1.0.dev0"

__all__ = [
    "BNP",
    "ENRNN",
    "EURNN",
    "LSTM",
    "NCGRU",
    "ORNN",
    "RNN",
    "URNN",
    "AssortedTimeNorm",
    "ExpRNN",
    "FullURNN",
    "ModReLU",
    "ScoRNN",
    "ScuRNN",
    "SpectralRNN",
    "activations",
    "backend",
    "initializers",
    "layers",
    "modrelu",
    "norms",
    "optim",
    "orthogonal_",
    "parameter_groups",
    "parametrizations",
    "preconditioners",
    "recurrences",
]
