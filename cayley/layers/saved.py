"""The classes that saved layers are made of, so that ``torch.load(weights_only=True)`` works."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from cayley import parametrizations
from cayley.activations import ModReLU
from cayley.cache import Cache, ThreadCache
from cayley.initializers import INITIALIZERS
from cayley.kernels.rotations import Layer
from cayley.norms.atn import AssortedTimeNorm, NormState
from cayley.norms.batch import PopulationStatistics
from cayley.norms.windows import TimeWindow
from cayley.parametrizations.gates import GateMatrices
from cayley.parametrizations.long_short import LongShort
from cayley.parametrizations.parametrization import Parametrization
from cayley.parametrizations.rebase_option import RebaseOption
from cayley.parametrizations.skew import Skew, SkewHermitian
from cayley.preconditioners.rule import Hook

__all__ = ["register_safe_globals", "safe_globals"]


def safe_globals(*layers: type[nn.Module]) -> list[Any]:
    """The classes and functions that pickled layers refer to, ours and torch's.

    Arguments:
        layers: The classes of the layers themselves.

    Example:
        >>> import cayley
        >>> cayley.ScoRNN in safe_globals(cayley.ScoRNN)
        True
    """
    parts = [Cache, ThreadCache, GateMatrices, Layer, LongShort, PopulationStatistics, RebaseOption]
    parts += [AssortedTimeNorm, Hook, ModReLU, NormState, Skew, SkewHermitian, TimeWindow]
    # where the class was when older files were written
    moved = (Layer, "cayley.parametrizations.givens.Layer")
    return [*layers, *parts, moved, *_maps(), nn.ModuleDict, *INITIALIZERS.values()]


def _maps() -> Iterator[type]:
    for name in parametrizations.__all__:
        value = getattr(parametrizations, name)
        if isinstance(value, type) and issubclass(
            value, (Parametrization, parametrizations.StructuredMatrix)
        ):
            yield value


def register_safe_globals(*layers: type[nn.Module]) -> None:
    """Let ``torch.load(weights_only=True)`` load whole layers, from now on in this process.

    Loading makes objects of these classes and fills in their attributes; it runs no other code.
    """
    torch.serialization.add_safe_globals(safe_globals(*layers))
