import signal
from collections.abc import Iterator

import pytest

from cayley.lab.runs.interrupts import Interrupts


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """A process that was started in the background ignores Ctrl-C, and so would this one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_first_is_noted_the_second_kills() -> None:
    with Interrupts() as interrupts:
        assert interrupts.signal == 0
        signal.raise_signal(signal.SIGINT)
        assert interrupts.signal == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_afterwards_everything_is_as_before() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
