"""Rate and time left of a run, with the time of evaluations counted separately."""

import time

from cayley.lab.wording import duration

__all__ = ["Clock"]


class Clock:
    """Rate and time left, measured on the steps of this session.

    The rate is that of training alone. The time left includes the remaining evaluations: their
    number follows from the interval between the last two, and each is assumed to take as long as
    the last one.

    Arguments:
        step: The first step of the session.
        steps: The planned last step.
    """

    def __init__(self, step: int, steps: int) -> None:
        self.first, self.steps = step, steps
        self.began = time.monotonic()
        self.paused: float | None = None
        self.evaluating = 0.0
        self.evaluated, self.interval, self.last = step, 0, 0.0

    def pause(self) -> None:
        """An evaluation begins or continues."""
        if self.paused is None:
            self.paused = time.monotonic()

    def go_on(self, step: int) -> None:
        """The evaluation is over."""
        if self.paused is not None:
            self.last = time.monotonic() - self.paused
            self.evaluating += self.last
            self.paused = None
        self.interval, self.evaluated = step - self.evaluated, step

    def words(self, step: int) -> str:
        """The rate and the time left, such as ``"12.5/s, 0:01:10 left"``."""
        now = time.monotonic() if self.paused is None else self.paused
        passed = now - self.began - self.evaluating
        rate = (step - self.first) / passed if passed > 0 else 0.0
        if rate == 0:
            return ""
        left = max(self.steps - step, 0)
        evaluations = left / self.interval if self.interval else 0.0
        speed = f"{rate:.3g}/s" if rate >= 1 else f"{1 / rate:.3g} s a step"
        return f"{speed}, {duration(left / rate + evaluations * self.last)} left"
