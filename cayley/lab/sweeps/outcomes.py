"""What a trial came to."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Outcome"]


@dataclass(frozen=True)
class Outcome:
    """What a trial came to.

    Attributes:
        state: ``"pruned"`` is one that was ended early, or whose loss was not finite: there is no
            use in settings like these. ``"failed"`` says nothing about them.
        value: Of the finished run; None for the others.
        reason: Why there is none.
    """

    state: Literal["complete", "pruned", "failed"]
    value: float | None = None
    reason: str = ""
