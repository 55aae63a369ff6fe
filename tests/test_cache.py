"""What is kept in a cache is no part of copies and pickles."""

import copy
import pickle
from collections.abc import Callable

import pytest

from cayley.cache import Cache


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))]
)
def test_copies_are_empty(duplicate: Callable[[Cache], Cache]) -> None:
    cache = Cache()
    cache.value = lambda: None  # nothing could pickle it
    twin = duplicate(cache)
    assert twin is not cache
    assert twin.value is None
    assert cache.value is not None
