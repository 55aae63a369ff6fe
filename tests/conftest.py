import signal
from collections.abc import Iterator

import pytest


def pytest_collection() -> None:
    """What workers need, but not the process that hands out tests to them."""
    import torch

    # in the background, and under nohup, a process ignores them, and so do those that it starts
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # one thread a worker: the workers share the cores
    torch.set_num_threads(1)
    # nobody reads where the nodes of a graph come from, and stacks are deep in tests
    torch.fx.config.do_not_emit_stack_traces = True
    # nor how long the guards of a compiled function take, for which dynamo empties all caches of
    # the processor
    # pyrefly: ignore[bad-assignment]
    torch._C._dynamo.guards.profile_guard_manager = lambda *_: 0.0


@pytest.fixture(autouse=True)
def same_start() -> Iterator[None]:
    """Every test begins with one seed, in double precision, and nothing said yet.

    One fixture, as each takes as long as a short test.
    """
    import torch

    from cayley.notices import forget_notices

    torch.default_generator.manual_seed(5544)
    # torch.manual_seed formats a traceback for every kind of device that is not there
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(5544)
    # warnings that are given once a process are given in every test
    forget_notices()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
