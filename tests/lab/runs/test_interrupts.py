import os
import signal
import time

import pytest

from cayley.lab.runs.interrupts import Interrupts


def test_the_first_is_noted_the_second_kills() -> None:
    with Interrupts() as noted:
        assert noted.signal == 0
        signal.raise_signal(signal.SIGINT)
        assert noted.signal == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_asked_twice_at_once_it_stops_once(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So do batch systems and timeout: they ask the process and its group."""
    asked = []
    before = signal.signal(number, lambda number, frame: asked.append(number))
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    try:
        with Interrupts() as noted:
            signal.raise_signal(number)
            now += 29
            signal.raise_signal(number)
            assert noted.signal == number
            assert not asked
            now += 2
            signal.raise_signal(number)
            assert asked == [number]
    finally:
        signal.signal(number, before)


def test_ctrl_c_after_another_signal_stops_at_once() -> None:
    with Interrupts() as noted:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert noted.signal == signal.SIGTERM


def test_a_hangup_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as noted:
            signal.raise_signal(signal.SIGHUP)
            assert noted.signal == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_closed_terminal_can_be_written_to() -> None:
    outside, terminal = os.openpty()
    with Interrupts((terminal,)) as noted:
        os.close(outside)
        with pytest.raises(OSError, match="Input/output error"):
            os.write(terminal, b"progress")
        signal.raise_signal(signal.SIGHUP)
        assert os.write(terminal, b"progress") == 8
        assert noted.signal == signal.SIGHUP
    os.close(terminal)


def test_afterwards_everything_is_as_before() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
