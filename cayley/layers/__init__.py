"""Recurrent layers with the contract of ``torch.nn.RNN``."""

from cayley.layers.elman import RNN
from cayley.layers.enrnn import ENRNN
from cayley.layers.gru import NCGRU
from cayley.layers.lstm import LSTM
from cayley.layers.networks import (
    EURNN,
    ORNN,
    URNN,
    ExpRNN,
    FullURNN,
    ScoRNN,
    ScuRNN,
    SpectralRNN,
)

__all__ = [
    "ENRNN",
    "EURNN",
    "LSTM",
    "NCGRU",
    "ORNN",
    "RNN",
    "URNN",
    "ExpRNN",
    "FullURNN",
    "ScoRNN",
    "ScuRNN",
    "SpectralRNN",
]
