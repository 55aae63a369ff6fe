"""The recurrences that the layers run, each as the loop that defines it and as an operator."""

from cayley.kernels.dispatch import backend
from cayley.recurrences.composed import composed, composed_loop
from cayley.recurrences.elman import elman, elman_loop
from cayley.recurrences.elman_norm import (
    NormalizedStates,
    normalized_elman,
    normalized_elman_loop,
)
from cayley.recurrences.gru import gru, gru_loop
from cayley.recurrences.lstm import States, lstm, lstm_loop
from cayley.recurrences.lstm_call import NormSite
from cayley.recurrences.rotated import rotated, rotated_loop
from cayley.recurrences.scans import decomposed

__all__ = [
    "NormSite",
    "NormalizedStates",
    "States",
    "backend",
    "composed",
    "composed_loop",
    "decomposed",
    "elman",
    "elman_loop",
    "gru",
    "gru_loop",
    "lstm",
    "lstm_loop",
    "normalized_elman",
    "normalized_elman_loop",
    "rotated",
    "rotated_loop",
]
