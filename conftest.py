"""What all tests share: modules that need an extra, and the selections ``--fast`` and ``--gpu``."""

import gc
import os
from importlib.util import find_spec

import pytest
from _pytest.runner import runtestprotocol

# workers, and the processes that tests start, read compiled modules and not the sources again
os.environ["PYTHONDONTWRITEBYTECODE"] = ""
# for a few lines of C++, inductor need neither try vector instructions nor precompile headers
os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "0"
os.environ["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] = "0"
# nor dynamo look for garbage after every function
os.environ["TORCH_DYNAMO_RUN_GC_AFTER_COMPILE"] = "0"

# modules whose examples need a package
NEEDS = {
    "torch_geometric": ["cayley/preconditioners/graph.py"],
    "optuna": ["cayley/lab/sweeps/engine.py", "cayley/lab/sweeps/storage.py"],
}
collect_ignore = [path for need, paths in NEEDS.items() if not find_spec(need) for path in paths]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--fast`` and ``--gpu``."""
    parser.addoption(
        "--fast",
        action="store_true",
        help="one case of every test, and none that is marked slow",
    )
    parser.addoption("--gpu", action="store_true", help="only what needs an NVIDIA GPU")


def pytest_collection() -> None:
    """Look for no garbage while half a million objects are made that stay."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Look for garbage again, less often, and not among what is there to the end."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep what is selected, and begin with slow tests: at the end, workers would wait for them."""
    kept = items[:]
    if config.getoption("--gpu"):
        kept = [item for item in kept if _needs_gpu(item)]
    if config.getoption("--fast"):
        first = {item.nodeid.partition("[")[0]: item for item in reversed(kept)}
        kept = [item for item in first.values() if not item.get_closest_marker("slow")][::-1]
    chosen = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = sorted(kept, key=lambda item: item.get_closest_marker("slow") is None)


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Let workers send fewer reports: each takes as long as a short test.

    Setting up and taking down are reported only if they fail, are skipped, or take long.
    """
    if not hasattr(item.config, "workerinput") or item.config.get_verbosity() > 0:
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        # what takes long is among --durations
        if report.when == "call" or not report.passed or report.duration > 0.005:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


def _needs_gpu(item: pytest.Item) -> bool:
    """Whether a test is skipped where there is no GPU, or has ``"cuda"`` among its parameters."""
    reasons = (mark.kwargs.get("reason") for mark in item.iter_markers("skipif"))
    case = getattr(item, "callspec", None)
    return "no GPU" in reasons or (case is not None and "cuda" in map(str, case.params.values()))
