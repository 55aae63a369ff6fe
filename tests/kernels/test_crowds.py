"""The number of networks that run at a time."""

import pytest

from cayley.kernels.crowds import crowd, crowded


def test_crowds_end_in_any_order() -> None:
    """As those of two threads do."""
    first, second = crowded(16), crowded(4)
    with first:
        second.__enter__()
        assert crowd() == 16
    assert crowd() == 4
    second.__exit__(None, None, None)
    assert crowd() == 1


def test_a_crowd_ends_with_an_error() -> None:
    with pytest.raises(ValueError, match="no"), crowded(16):
        raise ValueError("no")
    assert crowd() == 1
