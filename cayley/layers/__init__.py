"""Recurrent layers with the contract of ``torch.nn.RNN``."""

from cayley.layers.cells import (
    ENRNNCell,
    EURNNCell,
    ExpRNNCell,
    FullURNNCell,
    LSTMCell,
    NCGRUCell,
    ORNNCell,
    RNNCell,
    ScoRNNCell,
    ScuRNNCell,
    SpectralRNNCell,
    URNNCell,
)
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
from cayley.layers.recurrent import Recurrent, freeze
from cayley.layers.saved import register_safe_globals

__all__ = [
    "CELLS",
    "ENRNN",
    "EURNN",
    "LSTM",
    "NCGRU",
    "NETWORKS",
    "ORNN",
    "RNN",
    "URNN",
    "ENRNNCell",
    "EURNNCell",
    "ExpRNN",
    "ExpRNNCell",
    "FullURNN",
    "FullURNNCell",
    "LSTMCell",
    "NCGRUCell",
    "ORNNCell",
    "RNNCell",
    "Recurrent",
    "ScoRNN",
    "ScoRNNCell",
    "ScuRNN",
    "ScuRNNCell",
    "SpectralRNN",
    "SpectralRNNCell",
    "URNNCell",
    "freeze",
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

CELLS: dict[str, type[Recurrent]] = {
    cell.__name__: cell
    for cell in (
        ENRNNCell,
        EURNNCell,
        ExpRNNCell,
        FullURNNCell,
        LSTMCell,
        NCGRUCell,
        ORNNCell,
        RNNCell,
        ScoRNNCell,
        ScuRNNCell,
        SpectralRNNCell,
        URNNCell,
    )
}

register_safe_globals(*NETWORKS.values(), *CELLS.values())
