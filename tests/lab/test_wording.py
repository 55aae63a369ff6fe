import random

import pytest

from cayley.lab.wording import duration, number, short_number, signed, spread, time_words


def test_four_digits_are_right() -> None:
    for _ in range(1000):
        value = random.uniform(1, 10) * 10.0 ** random.randint(-9, 9)
        assert float(number(value)) == pytest.approx(value, rel=5.1e-4)
        assert len(number(value).partition("e")[0].replace(".", "").lstrip("0")) >= 4


def test_compared_numbers_have_the_same_decimals() -> None:
    assert spread(97.312, 0.5) == "97.31 ± 0.50"
    assert spread(1.25e-5, 3e-7) == "1.250e-05 ± 3.000e-07"
    assert signed(-1.5e-6, 1.25e-5) == "−1.500e-06"
    assert signed(-1e-9, 0.97) == "0.0000"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0123, "12.3 ms"),
        (0.9996, "1000 ms"),
        (1.0, "1 s"),
        (119.96, "120 s"),
        (121.0, "2.02 min"),
        (7100.0, "118 min"),
        (7200.0, "2 h"),
        (5e6, "1389 h"),
    ],
)
def test_times(seconds: float, words: str) -> None:
    assert time_words(seconds) == words


def test_a_duration_is_rounded_to_seconds() -> None:
    assert duration(59.6) == "0:01:00"
    assert duration(3725.2) == "1:02:05"


def test_short_numbers_have_at_most_four_digits() -> None:
    assert [short_number(x) for x in (0.25, 1234.5, 1e-7)] == ["0.25", "1234", "1e-07"]
