import pytest

from cayley.lab.training import clock
from cayley.lab.training.clock import Clock


class Time:
    now = 50.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(clock, "time", time)
    return time


def test_time_left(time: Time) -> None:
    clock = Clock(10, 100)
    assert clock.words(10) == ""
    time.now = 60.0
    assert clock.words(30) == "2/s, 0:00:35 left"
    assert clock.words(12) == "5 s a step, 0:07:20 left"


def test_evaluations_are_not_in_the_rate_and_those_to_come_in_the_time_left(time: Time) -> None:
    clock = Clock(0, 100)
    # before the first step: how often there will be one is not known yet
    clock.pause()
    time.now += 30
    clock.go_on(0)
    time.now += 10
    assert clock.words(20) == "2/s, 0:00:40 left"
    clock.pause()
    time.now += 5
    # while it goes on, too
    clock.pause()
    assert clock.words(20) == "2/s, 0:00:40 left"
    clock.go_on(20)
    # four more of five seconds, one every twenty steps
    assert clock.words(20) == "2/s, 0:01:00 left"
