"""What is kept in a cache is no part of copies and pickles."""

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from cayley.cache import Cache, ThreadCache


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))]
)
@pytest.mark.parametrize("make", [Cache, ThreadCache])
def test_copies_are_empty(make: type[Cache], duplicate: Callable[[Cache], Cache]) -> None:
    cache = make()
    cache.value = lambda: None  # nothing could pickle it
    twin = duplicate(cache)
    assert type(twin) is make
    assert twin is not cache
    assert twin.value is None
    assert cache.value is not None


def test_threads_have_values_of_their_own() -> None:
    cache: ThreadCache[int] = ThreadCache()
    cache.value = 1
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: cache.value).result() is None
    assert cache.value == 1
