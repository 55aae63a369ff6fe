"""All runs of a queue in one table, at a terminal."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cayley.lab.runs import find_state
from cayley.lab.wording import duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from cayley.lab.commands.queue import Queue, Work

__all__ = ["LiveTable"]

RENEW_SECONDS = 1.0
# what is under way, and what went wrong, is seen where a terminal is not high enough for all
ORDER = ("running", "failed", "to do", "done")


class LiveTable:
    """Context in which a table shows how far each run is, renewed every second.

    Arguments:
        console: Where it is shown; None for the standard error.
        progress: Words below the table; None for how many runs are done.
    """

    def __init__(
        self,
        console: "Console | None" = None,
        progress: "Callable[[Queue], str] | None" = None,
    ) -> None:
        from rich.console import Console
        from rich.live import Live

        # names of runs and messages of errors may have brackets, which are no markup
        self.console = console or Console(stderr=True, highlight=False, markup=False, emoji=False)
        self.progress = progress
        self._live = Live(console=self.console, auto_refresh=False, transient=True)
        self._renewed = -RENEW_SECONDS

    def __enter__(self) -> "LiveTable":
        self._live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._live.stop()

    def tell(self, words: str) -> None:
        """Print words above the table."""
        self.console.print(words, soft_wrap=True)

    def show(self, queue: "Queue") -> None:
        """Renew the table, if the last time is a second ago."""
        now = time.monotonic()
        if now - self._renewed >= RENEW_SECONDS:
            self._renewed = now
            self._live.update(self.table(queue), refresh=True)

    def table(self, queue: "Queue") -> "Table":
        """The runs of a queue, those under way first."""
        from rich.table import Table

        done = sum(work.code is not None for work in queue.works)
        words = (
            f"{done} of {len(queue.works)} done" if self.progress is None else self.progress(queue)
        )
        table = Table("run", "", "step", "time", box=None, caption=words, caption_justify="left")
        for work in sorted(queue.works, key=lambda work: ORDER.index(queue.state(work))):
            running = queue.running.get(work.name)
            seconds = work.seconds + (0.0 if running is None else running.seconds)
            time = duration(seconds) if seconds else ""
            table.add_row(work.name, queue.state(work), _steps(work, running is not None), time)
        return table


def _steps(work: "Work", running: bool) -> str:
    """How far a run is that is under way."""
    if not running or work.folder is None or not (work.folder / "run.json").exists():
        return ""
    state = find_state(work.folder)
    return f"{state.step}/{state.steps}"
