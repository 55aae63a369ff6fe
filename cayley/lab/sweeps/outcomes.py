"""The outcome of a trial."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Outcome"]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a trial.

    Attributes:
        state: ``"pruned"`` if it was ended early, or its loss was not finite: settings like these
            are not worth trying. ``"failed"`` says nothing about the settings.
        value: The value of a complete trial; None for others.
        reason: Why there is no value.
    """

    state: Literal["complete", "pruned", "failed"]
    value: float | None = None
    reason: str = ""
