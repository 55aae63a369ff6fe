"""Who looks on while recurrences run, for diagnostics; nobody does unless asked."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

__all__ = ["Observer", "Run", "is_observed", "observed", "tell_observer"]


class Run(NamedTuple):
    """A run of a recurrence that has just ended.

    Attributes:
        operator: The :class:`~cayley.kernels.operator.Operator` of the recurrence.
        call: What it was given, a record of :mod:`cayley.kernels.calls`.
        states: What it gave, attached to autograd's graph.
        backend: The back end under which it ran.
    """

    operator: Any
    call: Any
    states: Any
    backend: str


Observer = Callable[[Run], None]


class _Looking(threading.local):
    """The observer of a thread; see :class:`cayley.kernels.dispatch.backend` for why so."""

    def __init__(self) -> None:
        self.observer: Observer | None = None


_looking = _Looking()


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Context in which an observer is told of every run of a recurrence in this thread.

    Arguments:
        observer: Called after each run.

    Example:
        >>> import torch, cayley
        >>> seen = []
        >>> with observed(seen.append):
        ...     output, _ = cayley.ScoRNN(2, 8)(torch.randn(5, 3, 2))
        >>> seen[0].states.h is output
        True
    """
    before, _looking.observer = _looking.observer, observer
    try:
        yield
    finally:
        _looking.observer = before


def is_observed() -> bool:
    """Whether there is an observer in this thread: all that a run costs where there is none."""
    return _looking.observer is not None


def tell_observer(run: Run | None) -> None:
    """Tell the observer, if there is one, of a run.

    Arguments:
        run: The run; None where somebody traces it, or takes derivatives that go around the
            operator.
    """
    if _looking.observer is None:
        return
    if run is None:
        raise RuntimeError(
            "expected a recurrence that runs now, got one that is traced or transformed: "
            "diagnostics look at eager passes; call the layer outside of torch.compile, "
            "torch.export, torch.func and derivatives in forward mode"
        )
    _looking.observer(run)
