"""The precisions of runs."""

from typing import Literal

__all__ = ["Precision"]

Precision = Literal["32-true", "64-true", "bf16-mixed"]
