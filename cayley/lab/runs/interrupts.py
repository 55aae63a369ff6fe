"""Ctrl-C, a closed terminal and the end of a batch job, noted until a loop can stop."""

import os
import signal
import time
from types import FrameType, TracebackType

__all__ = ["Interrupts"]

# batch systems and timeout(1) send SIGTERM twice: to the process, and to its group
GRACE_SECONDS = 30.0


class Interrupts:
    """Notes SIGINT, SIGTERM and SIGHUP instead of letting them end the process.

    A second Ctrl-C stops the process immediately. A second SIGTERM or SIGHUP does so only 30
    seconds after the first signal: until then the process is busy with its checkpoint.

    Arguments:
        files: File descriptors to redirect if their terminal is closed.

    Attributes:
        signal: The number of the signal that came, or 0.

    Example:
        >>> with Interrupts() as interrupts:
        ...     signal.raise_signal(signal.SIGTERM)
        ...     signal.raise_signal(signal.SIGTERM)
        ...     print(interrupts.signal == signal.SIGTERM)
        True
    """

    def __init__(self, files: tuple[int, ...] = (1, 2)) -> None:
        self.signal = 0
        self._files = files
        self._terminals: list[int] = []
        self._since = 0.0
        self._before: dict[int, signal.Handlers] = {}

    def __enter__(self) -> "Interrupts":
        self._terminals = [file for file in self._files if os.isatty(file)]
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # under nohup SIGHUP stays ignored
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
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
        if number == signal.SIGHUP:
            self._leave_terminals()
        if not self.signal:
            self.signal, self._since = number, time.monotonic()
            # not print: it may have been interrupted itself
            if 2 in self._terminals:
                os.write(2, b"\nstopping after this step; Ctrl-C once more stops at once\n")
        elif number == signal.SIGINT or time.monotonic() - self._since >= GRACE_SECONDS:
            self._restore()
            signal.raise_signal(number)

    def _leave_terminals(self) -> None:
        """Redirect output to nowhere, since writing to a closed terminal is an error."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for file in self._terminals:
            os.dup2(nowhere, file)
        os.close(nowhere)
        self._terminals = []

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
