from collections.abc import Callable
from inspect import signature

import pytest

from cayley.recurrences import (
    composed,
    composed_loop,
    elman,
    elman_loop,
    gru,
    gru_loop,
    lstm,
    lstm_loop,
    rotated,
    rotated_loop,
)


@pytest.mark.parametrize(
    ("fused", "loop"),
    [
        (composed, composed_loop),
        (elman, elman_loop),
        (gru, gru_loop),
        (lstm, lstm_loop),
        (rotated, rotated_loop),
    ],
)
def test_a_loop_takes_the_place_of_its_operator(
    fused: Callable[..., object], loop: Callable[..., object]
) -> None:
    assert signature(fused) == signature(loop)
