"""What is said once, by whom, and how it is forgotten."""

import gc
import warnings
from typing import Any

import pytest

from cayley.notices import forget_notices, warn_once


class Owner:
    """Something that gives warnings of its own."""


def count(times: int, **options: Any) -> int:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for time in range(times):
            warn_once(f"time {time}", **options)
    return len(caught)


def test_a_key_is_said_once() -> None:
    assert count(3, key="a") == 1
    assert count(2, key="a") == 0
    assert count(2, key="b") == 1


def test_owners_are_apart() -> None:
    one, two = Owner(), Owner()
    assert count(2, key="a") == count(2, key="a", owner=one) == count(2, key="a", owner=two) == 1
    assert count(1, key="a", owner=one) == 0
    del one
    gc.collect()
    assert count(2, key="a", owner=Owner()) == 1


@pytest.mark.parametrize("time", [1, 2])
def test_every_test_begins_anew(time: int) -> None:
    assert count(2, key="in two tests") == 1
    forget_notices()
    assert count(2, key="in two tests") == 1


def test_the_warning_points_to_the_caller() -> None:
    with pytest.warns(UserWarning, match="here") as caught:
        warn_once("here", key="here", stacklevel=1)
    assert caught[0].filename == __file__
