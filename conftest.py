"""What all tests share: modules that need an extra, and the quick selection of ``--fast``."""

import gc
import os
from importlib.util import find_spec

import pytest

# workers, and the processes that tests start, read compiled modules and not the sources again
os.environ["PYTHONDONTWRITEBYTECODE"] = ""
# for a few lines of C++, inductor need neither try vector instructions nor precompile headers
os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "0"
os.environ["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] = "0"

# modules whose examples need a package
NEEDS = {
    "torch_geometric": ["cayley/preconditioners/graph.py"],
    "optuna": ["cayley/lab/sweeps/engine.py", "cayley/lab/sweeps/storage.py"],
}
collect_ignore = [path for need, paths in NEEDS.items() if not find_spec(need) for path in paths]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--fast``."""
    parser.addoption(
        "--fast",
        action="store_true",
        help="one case of every test, and none that is marked slow",
    )


def pytest_collection() -> None:
    """Look for no garbage while half a million objects are made that stay."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Look for garbage again, less often, and not among what is there to the end."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With ``--fast`` keep the first case of every test that is not slow.

    Without it the slow ones come first: at the end, one worker would wait for another.
    """
    if not config.getoption("--fast"):
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)
        return
    seen: set[str] = set()
    left_out = []
    for item in list(items):
        test = item.nodeid.partition("[")[0]
        if test in seen or item.get_closest_marker("slow"):
            items.remove(item)
            left_out.append(item)
        seen.add(test)
    config.hook.pytest_deselected(items=left_out)
