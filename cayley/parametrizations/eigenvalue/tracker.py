"""Following a dominant eigenpair on a GPU without waiting for it, and looking at it afterwards."""

import cmath
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from cayley.parametrizations.eigenvalue.dominant import Event, dominant_eigenpair
from cayley.parametrizations.eigenvalue.stage import (
    MOST,
    STATUS,
    Following,
    Stage,
    Status,
    columns_of,
    lead_of,
    write,
)
from cayley.parametrizations.eigenvalue.subspace import Candidate, candidate
from cayley.parametrizations.eigenvalue.tracking import project, stands_alone

__all__ = ["Tracker"]

# So many good answers in a row are waited for; after them, every answer's residuals are looked at
# one call later, all eigenvalues of the small space once in CHECK calls and those of T in AUDIT.
CALM = 8
CHECK = 16
AUDIT = 8192
# How often T is followed from where the last answer was, if that is waited for and not good.
TRIES = 6
# How far θ may be off what the small space knows, above that one's own bound.
NEAR = 1e-5


@contextmanager
def _one_thread() -> Iterator[None]:
    """Context for algebra of small matrices, where many threads mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Tracker:
    r"""Normalises a matrix by its spectral radius, following the dominant eigenpair.

    A call is one :func:`~.eigenvalue.tracking.track`, which nothing waits for; on a GPU
    it is a CUDA graph. Whether its answer was good is known afterwards:

    - the first answers, ``CALM`` good ones in a row, are waited for and looked at at once. From one
      that is not good, or from a larger eigenvalue that the small space knows, T is followed once
      more; after ``TRIES`` of them
      :func:`~.eigenvalue.dominant.dominant_eigenpair` takes over;
    - after them, the residuals of an answer are looked at in the next call, when they have long
      arrived, and the eigenvalues of the small space after every ``CHECK`` calls. If an answer was
      not good, or another eigenvalue has become larger, it is counted as ``Event.LATE``, and all
      begins anew. If it was good by a small margin only, the next one is waited for;
    - every ``AUDIT`` calls all eigenvalues are computed.

    Note:
        An eigenvalue that overtakes the one that is followed is thus noticed up to ``CHECK`` calls
        late, and a sudden large step one call late; where it leaves no eigenvectors, the call takes
        the last ρ as a constant. All decisions are functions of the buffers: a run that is resumed
        from them does the same.

    Example:
        >>> from cayley.parametrizations.eigenvalue.dominant import followed_columns
        >>> from cayley.parametrizations.eigenvalue.stage import memory_size
        >>> s = 100
        >>> k = followed_columns(s)
        >>> state = Following(
        ...     torch.zeros(s, k),
        ...     torch.zeros(s, k),
        ...     torch.tensor(False),
        ...     torch.zeros(len(Event), dtype=torch.int64),
        ...     torch.zeros(memory_size(k), dtype=torch.int64),
        ... )
        >>> T = torch.diag(torch.linspace(0.1, 2.0, s))
        >>> tracker = Tracker()
        >>> for _ in range(3):
        ...     answer = tracker(T, state, eps=0.0)
        >>> answer[-1], state.counts[:2]
        (tensor(2.), tensor([2, 1]))
    """

    def __init__(self) -> None:
        self._stage: Stage | None = None
        self._posted: _Posted | None = None

    def __reduce__(self) -> tuple[type["Tracker"], tuple[()]]:
        return Tracker, ()

    @torch.no_grad()
    def __call__(self, T: Tensor, state: Following, eps: float) -> Tensor:
        r"""One call.

        Arguments:
            T: The matrix, float32, (s, s).
            state: What was left by the call before; it changes.
            eps: What is added to the spectral radius.

        Returns:
            Four rows f_1, f_2, u_1, u_2 and one number d, (4s + 1), such that W = T / d and
            :math:`\partial L / \partial T = G / d + \langle G, W \rangle (f_1 u_1^\top + f_2
            u_2^\top)` for :math:`G = \partial L / \partial W`.
        """
        if self._stage is None or not self._stage.fits(state, eps):
            self._stage = Stage(state, eps)
        stage = self._stage
        status = Status(*self._read(state.memory, STATUS).tolist())
        due = status.seen % AUDIT == 0
        streak = min(status.streak, CALM - 1)
        if status.streak >= CALM and not due:
            checked = status.seen % CHECK != 0 or self._look(status, state.memory)[0]
            if status.calm and checked:
                stage.step(T, status.next_work)
                self._post(state.memory, status.seen + 1, stage.pinned, on_its_way=STATUS)
                return stage.answer.clone()
            if not (status.good and checked):
                state.counts[Event.FOLLOWED] -= 1
                state.counts[Event.LATE] += 1
                streak = 0
        if status.eigenvalue and cmath.isfinite(status.eigenvalue) and not due:
            right, left, latched, counts = (buffer.clone() for buffer in state[:-1])
            for tries, work in enumerate((status.next_work, *[MOST] * (TRIES - 1))):
                # a call is counted once, and closes the latch by its last answer
                state.latched.copy_(latched)
                state.counts.copy_(counts)
                stage.step(T, work)
                self._posted = None
                found = Status(*self._read(state.memory, STATUS).tolist())
                if not found.vectors:
                    continue
                largest, other = self._look(found, state.memory)
                if largest and found.good:
                    # a second try starts at T itself: it does not tell how T changes
                    write(state.memory, streak=streak + 1 if found.calm and tries == 0 else 0)
                    self._post(state.memory, found.seen, stage.pinned)
                    return stage.answer.clone()
                if other is not None:
                    self._turn_to(other, found.scale, state.memory)
            for buffer, value in zip(state, (right, left, latched, counts), strict=False):
                buffer.copy_(value)
        return self._anew(T, state, eps)

    def _anew(self, T: Tensor, state: Following, eps: float) -> Tensor:
        """The answer of the operator that waits, and the state from which to follow it."""
        right, left, latched, counts, memory = state
        rho, eigenvalue, u, v, V, W, event = dominant_eigenpair(T, right, left, counts, ~latched)
        right.copy_(V)
        left.copy_(W)
        latched.logical_or_(rho > 1)
        counts.add_(torch.arange(len(Event), device=T.device) == event)
        multiple = event == int(Event.MULTIPLE)
        theta = torch.where(multiple, 0, torch.view_as_real(eigenvalue).to(torch.float64))
        memory.zero_()
        write(memory, real=theta[0], imag=theta[1], seen=counts.sum(), latched=latched)
        w = v.conj()
        rows = torch.view_as_real(torch.stack((u, w)).resolve_conj()).mT.to(torch.float64)
        lead_of(memory, right.shape[1]).copy_(
            torch.stack([_coordinates(X, Y) for X, Y in zip((right, left), rows, strict=True)])
        )
        self._posted = None
        denominator = torch.where(latched & (rho != 0), rho + eps, 1.0)
        factor = eigenvalue.conj() / (rho * (w @ u) * denominator)
        f = torch.where(latched & ~multiple, -(factor * w), 0)
        return torch.cat((f.real, -f.imag, u.real, u.imag, denominator[None]))

    @_one_thread()
    def _look(self, status: Status, memory: Tensor) -> tuple[bool, Candidate | None]:
        """Whether the small space knows no eigenvalue that may be as large as the followed one.

        If it knows one that is larger than all others, which.
        """
        k = columns_of(memory)
        gram = self._read(memory, len(memory))[STATUS + 4 * k :].view(4 * k, 4 * k)
        followed = status.eigenvalue / status.scale
        if not gram.isfinite().all():
            return False, None
        if stands_alone(gram, followed):
            return True, None
        found = candidate(project(gram), torch.finfo(torch.float32).eps)
        if found is None or found.tied:
            return False, None
        off = abs(found.eigenvalue - followed)
        largest = off <= found.bound + NEAR * abs(found.eigenvalue)
        return largest, None if largest else found

    def _turn_to(self, other: Candidate, scale: float, memory: Tensor) -> None:
        """Let the next step begin with another eigenvalue, which is in units of the scale."""
        eigenvalue = scale * other.eigenvalue
        write(memory, real=eigenvalue.real, imag=eigenvalue.imag)
        rows = torch.view_as_real(torch.stack((other.x, other.z)).resolve_conj()).mT
        lead_of(memory, columns_of(memory)).copy_(rows)

    def _post(self, memory: Tensor, seen: float, pinned: Tensor, on_its_way: int = 0) -> None:
        """Send what the next call will look at on its way to the CPU, if it is not already."""
        if memory.is_cuda:
            count = len(memory) if seen % CHECK == 0 else STATUS
            if count > on_its_way:
                pinned[:count].copy_(memory[:count], non_blocking=True)
            self._posted = _Posted(memory, count, pinned)

    def _read(self, memory: Tensor, count: int) -> Tensor:
        """The first numbers of the memory, on the CPU; without waiting where they were posted."""
        if self._posted is not None and self._posted.holds(memory, count):
            return self._posted.values(count)
        return memory[:count].view(torch.float64).to("cpu", copy=True)


def _coordinates(X: Tensor, rows: Tensor) -> Tensor:
    """Those of rows in terms of columns, by least squares."""
    X = X.to(torch.float64)
    return torch.linalg.solve_ex(X.mT @ X, (rows @ X).mT).result.mT


class _Posted:
    """Numbers on their way to the CPU.

    Arguments:
        memory: Where they come from.
        count: How many of them.
        pinned: Where they go to.
    """

    def __init__(self, memory: Tensor, count: int, pinned: Tensor) -> None:
        self._pinned, self._event = pinned, torch.cuda.Event()
        self._memory, self._version, self._count = memory, memory._version, count
        self._event.record(torch.cuda.current_stream(memory.device))

    def holds(self, memory: Tensor, count: int) -> bool:
        """Whether these are the first numbers that stand there; graphs leave the version alone."""
        same = memory is self._memory and memory._version == self._version
        return same and count <= self._count

    def values(self, count: int) -> Tensor:
        """The first numbers."""
        self._event.synchronize()
        return self._pinned[:count].view(torch.float64)
