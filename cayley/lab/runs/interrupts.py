"""Ctrl-C and the end of a batch job, noted until a loop can stop."""

import os
import signal
from types import FrameType, TracebackType

__all__ = ["Interrupts"]


class Interrupts:
    """Notes SIGINT and SIGTERM instead of dying of them; at the second one the process dies.

    Attributes:
        signal: The number of the signal that came, or 0.

    Example:
        >>> with Interrupts() as interrupts:
        ...     signal.raise_signal(signal.SIGTERM)
        ...     print(interrupts.signal == signal.SIGTERM)
        True
    """

    def __init__(self) -> None:
        self.signal = 0
        self._before: dict[int, signal.Handlers] = {}

    def __enter__(self) -> "Interrupts":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)  # pyrefly: ignore
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self._restore()
        # not print: it may have been interrupted itself
        if os.isatty(2):
            os.write(2, b"\nstopping after this step; once more stops at once\n")

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
