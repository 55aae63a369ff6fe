"""What the processes of a run have to agree on: when to save, and when to stop."""

import time

import torch
import torch.distributed as dist

from cayley.lab.processes import Processes

__all__ = ["Agreement"]

# the time between two exchanges, and so the longest delay of Ctrl-C, except during an evaluation
SECONDS = 0.1
MOST_STEPS = 1000


class Agreement:
    """Lets all processes of a run save and stop at the same step.

    A signal may reach only one of them, and only the clock of the first process counts. So they
    exchange what they know every few steps, about ten times a second.

    Arguments:
        processes: The processes of the run; a single one exchanges nothing.

    Example:
        >>> Agreement(Processes()).agree(signal=15, due=False)
        (15, False)
    """

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self.steps = self.left = 1
        self.last = time.monotonic()

    def agree(self, *, signal: int, due: bool) -> tuple[int, bool]:
        """The signal that any process has received, or 0, and whether a checkpoint is due.

        Arguments:
            signal: The signal that this process has received, or 0.
            due: Whether it is time for a checkpoint, by this process's clock.
        """
        if not self.processes.several:
            return signal, due
        self.left -= 1
        if self.left > 0:
            return 0, False
        passed, self.last = time.monotonic() - self.last, time.monotonic()
        steps = min(max(1, int(self.steps * SECONDS / max(passed, 1e-6))), MOST_STEPS)
        # grow slowly: the first steps of a run, and evaluations, distort the measured rate
        steps = min(steps, 2 * self.steps)
        mine = [due, steps] if self.processes.first else [0, 0]
        agreed = torch.tensor([signal, *mine])
        dist.all_reduce(agreed, dist.ReduceOp.MAX)
        signal, due, self.steps = agreed.tolist()
        self.left = self.steps
        return signal, bool(due)

    def longest(self, seconds: float) -> float:
        """The largest value among the processes."""
        if not self.processes.several:
            return seconds
        most = torch.tensor(seconds, dtype=torch.float64)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        return float(most)
