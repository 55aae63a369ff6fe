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
from cayley.layers.recurrent import Recurrent

__all__ = [
    "ENRNN",
    "EURNN",
    "LSTM",
    "NCGRU",
    "NETWORKS",
    "ORNN",
    "RNN",
    "URNN",
    "ExpRNN",
    "FullURNN",
    "ScoRNN",
    "ScuRNN",
    "SpectralRNN",
]

NETWORKS: dict[str, type[Recurrent]] = {
    network.__name__: network
    for network in (
        ENRNN,
        EURNN,
        ExpRNN,
        FullURNN,
        LSTM,
        NCGRU,
        ORNN,
        RNN,
        ScoRNN,
        ScuRNN,
        SpectralRNN,
        URNN,
    )
}
