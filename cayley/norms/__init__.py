"""Normalisation over time: assorted-time normalisation, and population statistics."""

from cayley.norms.atn import AssortedTimeNorm, assorted_time_norm
from cayley.norms.batch import PopulationStatistics
from cayley.norms.pooling import synchronize
from cayley.norms.windows import TimeWindow, sliding_sum, window_statistics

__all__ = [
    "AssortedTimeNorm",
    "PopulationStatistics",
    "TimeWindow",
    "assorted_time_norm",
    "sliding_sum",
    "synchronize",
    "window_statistics",
]
