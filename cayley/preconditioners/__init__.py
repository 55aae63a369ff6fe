"""Preconditioners of gradients: batch normalisation preconditioning (BNP)."""

from cayley.preconditioners import callbacks, presets
from cayley.preconditioners.bnp import BNP
from cayley.preconditioners.joint import Bias, Block, Damping, Weight, precondition
from cayley.preconditioners.rule import Layout, Observation, Rows, Rule
from cayley.preconditioners.rules import default_rules
from cayley.preconditioners.statistics import RunningStatistics, Statistics

__all__ = [
    "BNP",
    "Bias",
    "Block",
    "Damping",
    "Layout",
    "Observation",
    "Rows",
    "Rule",
    "RunningStatistics",
    "Statistics",
    "Weight",
    "callbacks",
    "default_rules",
    "precondition",
    "presets",
]
