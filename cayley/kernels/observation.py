"""Observers of recurrences while they run, for diagnostics; by default there is none."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

__all__ = ["Observer", "Run", "is_observed", "observed", "tell_observer"]


class Run(NamedTuple):
    """A run of a recurrence that has just ended.

    Attributes:
        operator: The :class:`~cayley.kernels.operator.Operator` of the recurrence.
        call: Its arguments, a named tuple of :mod:`cayley.kernels.calls`.
        states: Its results, attached to autograd's graph.
        backend: The back end that it ran on.
    """

    operator: Any
    call: Any
    states: Any
    backend: str


Observer = Callable[[Run], None]


class _Looking(threading.local):
    """The observer of a thread; :mod:`cayley.kernels.dispatch` says why it is one of a thread."""

    def __init__(self) -> None:
        self.observer: Observer | None = None


_looking = _Looking()


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Context in which an observer is called for every run of a recurrence in this thread.

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
    """Whether there is an observer in this thread; without one, this check is the only cost."""
    return _looking.observer is not None


def tell_observer(run: Run | None) -> None:
    """Call the observer, if there is one, for a run.

    Arguments:
        run: The run; None if it is traced, or if derivatives are taken that bypass the operator.
    """
    if _looking.observer is None:
        return
    if run is None:
        raise RuntimeError(
            "expected a recurrence that runs eagerly, got one that is traced or transformed: for "
            "diagnostics call the layer outside torch.compile, torch.export, torch.func and "
            "forward-mode derivatives"
        )
    _looking.observer(run)
