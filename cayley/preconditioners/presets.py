"""The settings of the papers, as keyword arguments of :class:`~cayley.BNP`.

Example:
    >>> from torch import nn
    >>> from cayley.preconditioners import BNP
    >>> bnp = BNP(nn.LSTM(2, 3), **RECURRENT)
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

__all__ = ["GRAPH", "HELFRICH_2020", "POSPISIL_2023", "RECURRENT"]

HELFRICH_2020: Mapping[str, Any] = MappingProxyType({"eps": 0.5})
"""Statistics of the batch, σ̃² = σ² + 0.5: Helfrich's dissertation, 2020, section 3.3, CIFAR-10."""

POSPISIL_2023: Mapping[str, Any] = MappingProxyType(
    {"eps": 1e-4, "relative_eps": 1e-2, "momentum": 0.99, "start": "identity", "q": True}
)
"""Running statistics: Pospisil's dissertation, 2023, Algorithm 3, for dense layers."""

RECURRENT: Mapping[str, Any] = MappingProxyType({"eps": 1e-3})
"""Statistics of the batch, for recurrent layers: Pospisil's dissertation, 2023, Algorithm 4."""

GRAPH: Mapping[str, Any] = MappingProxyType({"eps": 1e-1})
"""Statistics of the batch, for graphs: Pospisil's dissertation, 2023, Algorithms 5 and 6."""
