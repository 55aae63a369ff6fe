"""Tracking a dominant eigenpair on a GPU without waiting, and checking it afterwards.

:func:`~.eigenvalue.subspace.follow` decides by numbers how to go on, which waits for a GPU. Here a
step decides nothing: the caller chooses the number of products, of terms of the series and of steps
of the inverse iteration, and the step also writes the numbers that show whether they were enough.
"""

import cmath
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from cayley.kernels.cuda.eigenpair import InverseIteration, inverse_iteration, write_answer
from cayley.kernels.cuda.replay import Captured
from cayley.parametrizations.eigenvalue.dominant import (
    NOISE,
    SCOUTS,
    Event,
    division,
    dominant_eigenpair,
    followed_columns,
)
from cayley.parametrizations.eigenvalue.ritz import (
    GROWTH,
    Candidate,
    candidate,
    factors,
    growth,
    ritz_pairs,
    ritz_problem,
    rival,
)

__all__ = ["Following", "Status", "Tracker"]

# CALM good results in a row are waited for. After them, the residuals of a result are checked one
# call later, and all eigenvalues of T every AUDIT calls. Those in the space of the columns are
# checked before one could have caught up if it came nearer PACE times as fast as before, and at
# least every CHECK calls; with every look, what is known of its speed fades by the factor FADE.
CALM = 8
CHECK = 16
PACE = 8
FADE = 0.9
AUDIT = 8192
# How many calm results have to be in a row until a step does no more than a change like the last
# needs.
SETTLED = 3
# How often tracking is repeated from the last result, if that was waited for and is not good.
TRIES = 4
# The modulus of the middle one of the eigenvalues, in units of ρ, from which on they are a crowd.
CROWD = 0.87
# How far θ may be from the eigenvalue in the space of the columns, beyond that one's error bound.
NEAR = 1e-5
# The residual that decides between little and much work.
FINE = 2e-4
# The largest estimated error of ρ, and the largest residual of good eigenvectors, in units of ρ;
# the next result is not waited for if the error was smaller by the factor MARGIN.
ERROR = 5e-7
RESIDUAL = 1e-3
MARGIN = 5
# Residuals above which vectors are unusable, and the last ones stay. src/quotient.cu has it too.
ROUGH = 0.1


class Work(NamedTuple):
    """How much a step does.

    Attributes:
        products: With all columns, before anything else.
        terms: The terms of the series that corrects the eigenvectors.
        squarings: How often the matrix is squared for these products.
    """

    products: int
    terms: int
    squarings: int = 0


LITTLE, MUCH = Work(3, 4), Work(3, 24)
# For a matrix that has changed so much that other eigenvectors have to enter the columns, and for
# one with so many eigenvalues of almost the same modulus that few products change little.
MORE, MOST = Work(8, 24), Work(1, 4, 6)


class Following(NamedTuple):
    """The buffers that a :class:`Tracker` reads and writes.

    Attributes:
        right, left: The columns to start from, (s, k).
        latched: Whether the latch is closed, ().
        counts: How often each :class:`~.eigenvalue.dominant.Event` has happened.
        status: A :class:`Status`, float64.
        lead: The coordinates of the eigenvectors in the columns, float64, (2, 2, k).
        gram: All inner products of the last step, float64, (4k, 4k).
    """

    right: Tensor
    left: Tensor
    latched: Tensor
    counts: Tensor
    status: Tensor
    lead: Tensor
    gram: Tensor

    @classmethod
    def zeros(cls, s: int, *, dtype: torch.dtype | None = None) -> "Following":
        """The buffers for a new (s, s) matrix; dtype is that of the columns."""
        k = followed_columns(s)
        return cls(
            torch.zeros(s, k, dtype=dtype),
            torch.zeros(s, k, dtype=dtype),
            torch.zeros((), dtype=torch.bool),
            torch.zeros(len(Event), dtype=torch.int64),
            torch.zeros(len(Status._fields), dtype=torch.float64),
            torch.zeros(2, 2, k, dtype=torch.float64),
            torch.zeros(4 * k, 4 * k, dtype=torch.float64),
        )


class Status(NamedTuple):
    """The result of the last call, as stored in the buffer ``status``.

    Attributes:
        real, imag: λ; 0 if there is none to track.
        r_u, r_v: The norms of the residuals, in units of |λ|.
        start: The larger of them before the series.
        overlap: |v*u|.
        scale: The |λ| of the previous call.
        seen: The number of calls.
        latched: Whether the latch is closed.
        streak: How many good results in a row were waited for.
        terms: The number of terms of the series.
        crowded: Whether many eigenvalues were almost as large, when last looked at.
        looked: The number of calls when others were last looked at.
        rival: The modulus of the next eigenvalue then, in units of |λ|; 0 if it is not known.
        motion: By how much that may change from call to call.
    """

    real: float
    imag: float
    r_u: float
    r_v: float
    start: float
    overlap: float
    scale: float
    seen: float
    latched: float
    streak: float
    terms: float
    crowded: float = 0.0
    looked: float = 0.0
    rival: float = 0.0
    motion: float = 0.0

    @property
    def eigenvalue(self) -> complex:
        """λ, with a nonnegative imaginary part."""
        return complex(self.real, abs(self.imag))

    @property
    def calm(self) -> bool:
        """Whether this result is good, and the next will be if T changes as much again."""
        return self.good and MARGIN * self.r_u * self.r_v <= ERROR * self.overlap

    @property
    def good(self) -> bool:
        """Whether ρ is accurate, and so are the eigenvectors if they are needed; not for NaN."""
        precise = self.r_u * self.r_v <= ERROR * self.overlap
        lax = not self.latched and abs(self.eigenvalue) <= 1
        return precise and (lax or max(self.r_u, self.r_v) <= RESIDUAL * self.overlap)

    @property
    def vectors(self) -> bool:
        """Whether the columns track T, even if roughly; not for NaN."""
        return self.r_u < ROUGH and self.r_v < ROUGH

    @property
    def trusted_calls(self) -> float:
        """For how many calls after the last look no other eigenvalue can be the largest."""
        ahead, pace = 1 - self.rival, PACE * self.motion
        if ahead <= 0:
            return 0
        return CHECK if pace * CHECK <= ahead else ahead // pace

    @property
    def alone(self) -> bool:
        """Whether the next call is one of the trusted ones."""
        return self.seen < self.looked + self.trusted_calls

    def watched(self, modulus: float) -> "Status":
        """This status after a look at the others, the largest of which has this modulus."""
        calls = max(self.seen - self.looked, 1)
        speed = abs(modulus - self.rival) / calls if self.rival else 0.0
        motion = max(speed, FADE * self.motion)
        return self._replace(looked=self.seen, rival=modulus, motion=motion)

    @property
    def next_work(self) -> Work:
        """The work that a change like the last one needs."""
        if self.streak < SETTLED:
            return MOST if self.crowded else MORE
        if not self.terms or not self.start > 0:
            return MUCH
        # each term reduces the residual by about the same factor
        shortened = (max(self.r_u, self.r_v) / self.start) ** (LITTLE.terms / self.terms)
        return LITTLE if self.start * shortened <= FINE else MUCH


class Look(NamedTuple):
    """What the inner products of a step say about the eigenvalue that it tracked.

    Attributes:
        largest: Whether no other in the space of the columns is as large.
        rival: The largest modulus of the others, in units of its own.
        other: The largest one there, if it is another one and larger than all others.
        crowded: Whether many of them are almost as large.
        grown: How much the second half of the columns has grown.
    """

    largest: bool
    rival: float
    other: Candidate | None = None
    crowded: bool = False
    grown: float = 1.0


class Track(NamedTuple):
    """The result of a step: rows are real and imaginary parts, sides are right and left.

    Attributes:
        u: The vectors, not normalised; that of the left side not conjugated, (2, 2, s).
        Au: Their products with A and with its transpose, (2, 2, s).
        residual: Their residuals before the series, (2, 2, s).
        columns: Bases for the next step, (2, s, k).
        gram: All inner products of V, W, AV and AᵀW, float64, (4k, 4k).
        iteration: The output of the inverse iteration.
    """

    u: Tensor
    Au: Tensor
    residual: Tensor
    columns: Tensor
    gram: Tensor
    iteration: InverseIteration


def track(
    A: Tensor, columns: Tensor, lead: Tensor, products: int, terms: int, squarings: int = 0
) -> Track:
    r"""Eigenvectors of a matrix that is not far from one whose eigenvectors are known.

    With the columns V and W of both sides after some products with A and :math:`A^\top`, let
    :math:`M = W^\top V` and :math:`N = W^\top A V`. Inverse iteration in the space of the columns,

    .. math:: x \leftarrow ((N - \sigma M)^{-1} M)^8 x, \qquad
              z^\top \leftarrow z^\top (M (N - \sigma M)^{-1})^8,

    starts from the vectors of the last step, and from their quotient
    :math:`\sigma = z^\top N x / z^\top M x`. Each vector, such as :math:`u = V x` with its
    quotient θ and its residual ϱ, is then corrected to

    .. math:: u + \sum_{i<n} \frac{A^i}{\theta^{i+1}} \varrho,

    and the columns of the next step include the correction. No other eigenvalue is considered; the
    inner products show later whether one has become larger.

    Note:
        :func:`~.eigenvalue.subspace.follow` removes the part in the space of V from the correction.
        That needs the inverse of M, which is sometimes large because of the columns that get random
        parts. The residual has no such part to begin with, :math:`W^\top \varrho = 0`, and the
        products add one of second order only.

        Nothing waits for a GPU, and nothing depends on numbers: a CUDA graph can capture a step.

    Arguments:
        A: The matrix, in units of the modulus of the eigenvalue, and its transpose, float64,
            (2, s, s).
        columns: Those to start from, float64, (2, s, k).
        lead: The coordinates of the two eigenvectors in these, as rows, float64, (2, 2, k).
        products: How often A is applied to the columns before anything else.
        terms: The number of terms of the series, at least 1.
        squarings: How often A is squared before these products.

    Returns:
        The eigenvectors, and what is known about their accuracy.
    """
    power = A[0]
    for _ in range(squarings):
        power = power @ power
    X, P = columns, torch.stack((power, power.mT)) if squarings else A
    for _ in range(products):
        X = P @ X
    AX = A @ X
    Y = torch.cat((*X, *AX), 1)
    gram = Y.mT @ Y
    found = inverse_iteration(gram, lead, terms)
    u = found.rows @ X.mT
    residual = torch.baddbmm(found.rows @ AX.mT, found.turn.expand(2, -1, -1), u, alpha=-1)
    parts = [residual]
    for _ in range(terms - 1):
        parts.append(parts[-1] @ A.mT)
    step = found.weights.expand(2, -1, -1) @ torch.cat(parts, 1)
    u = u + step
    columns = torch.baddbmm(X, step.mT, found.dual) @ found.basis
    return Track(u, u @ A.mT, residual, columns, gram, found)


class _Stage:
    """Tensors at fixed addresses, and the steps that work on them.

    Arguments:
        state: The buffers.
        eps: What is added to the spectral radius.

    Attributes:
        answer: What a :class:`Tracker` returns.
        status, gram: Copies of those of the state on the CPU; the status arrives after a step.
    """

    def __init__(self, state: Following, eps: float) -> None:
        s, k = state.right.shape
        device = state.right.device
        self.state, self.eps = state, eps
        self.T = torch.empty(s, s, dtype=torch.float64, device=device)
        self.answer = torch.empty(4 * s + 1, dtype=state.right.dtype, device=device)
        self.ok = torch.empty((), dtype=torch.bool, device=device)
        noise = torch.zeros(2, s, k, dtype=torch.float64, device="cpu")
        generator = torch.Generator("cpu").manual_seed(s)
        scouts = torch.randn(2, s, SCOUTS, generator=generator, dtype=torch.float64, device="cpu")
        noise[..., -SCOUTS:] = NOISE / s**0.5 * scouts
        self.noise = noise.to(device)
        self.status, self.gram = (
            torch.empty(x.shape, dtype=x.dtype, device="cpu", pin_memory=device.type == "cuda")
            for x in (state.status, state.gram)
        )
        self._captured: dict[Work, Captured[None]] = {}

    def fits(self, state: Following, eps: float) -> bool:
        """Whether these are the same buffers, at the same addresses."""
        return eps == self.eps and all(
            a is b and a.data_ptr() == b.data_ptr() for a, b in zip(state, self.state, strict=True)
        )

    def write(self, status: Status) -> None:
        """Change the status, by one copy; the one before must have arrived."""
        self.status.copy_(torch.tensor(status, dtype=torch.float64, device="cpu"))
        self.state.status.copy_(self.status, non_blocking=True)

    def step(self, T: Tensor, work: Work) -> None:
        """Track the eigenpair to T."""
        self.T.copy_(T)
        captured = self._captured.setdefault(work, Captured(self.T.device))
        captured(lambda: self._run(work))

    def _run(self, work: Work) -> None:
        right, left, latched, counts, status, lead, gram = self.state
        scale = torch.linalg.vector_norm(status[:2])
        A = torch.stack((self.T, self.T.mT)).div_(scale)
        columns = torch.stack((right, left))
        found = track(A, columns + self.noise, lead, *work)
        gram.copy_(found.gram)
        places = (status, lead, latched, counts, self.answer, self.ok)
        vectors = (found.u, found.Au, found.residual)
        write_answer(*vectors, found.iteration, places, work.terms, self.eps)
        columns = torch.where(self.ok, found.columns.to(columns.dtype), columns)
        right.copy_(columns[0])
        left.copy_(columns[1])
        # copied to the CPU without waiting, for the next call to check
        self.status.copy_(status, non_blocking=True)


def _write(status: Tensor, **values: Tensor | float) -> None:
    """Change some numbers of the status."""
    for name, value in values.items():
        place = status[Status._fields.index(name)]
        place.copy_(value) if isinstance(value, Tensor) else place.fill_(value)


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
    r"""Normalises a matrix by its spectral radius, tracking the dominant eigenpair.

    A call is one :func:`track`, which does not wait; on a GPU it is a CUDA graph. Whether the
    result was good is known afterwards:

    - the first results, until ``CALM`` good ones in a row, are waited for and checked immediately.
      If a result is not good, or the space of the columns has a larger eigenvalue, tracking is
      repeated from there, with a high power of T if many eigenvalues are almost as large: a few
      products do not separate these; after ``TRIES`` attempts
      :func:`~.eigenvalue.dominant.dominant_eigenpair` takes over;
    - after that, the residuals of a result are checked in the next call, when they have long
      arrived, and the eigenvalues in the space of the columns before one of them, at the pace of
      the last looks, could have become the largest. If one could at the next call, its result is
      waited for, and so it is if the last one was good by a small margin only. If a result was not
      good, or another eigenvalue is larger, it is counted as ``Event.LATE``, and everything starts
      again;
    - every ``AUDIT`` calls all eigenvalues are computed.

    Note:
        An eigenvalue that overtakes the tracked one is thus noticed when it does, unless it comes
        ``PACE`` times as fast as any lately; a sudden large step is noticed one call late; if no
        eigenvectors are left, that call takes the last ρ as a constant. All decisions are functions
        of the buffers: a run that is resumed from them does the same.
    """

    def __init__(self) -> None:
        self._stage: _Stage | None = None
        self._posted: _Posted | None = None

    @torch.no_grad()
    def __call__(self, T: Tensor, state: Following, eps: float) -> Tensor:
        r"""One call.

        Arguments:
            T: The matrix, float32, (s, s).
            state: The buffers as the previous call left them; they change.
            eps: What is added to the spectral radius.

        Returns:
            The :func:`~.eigenvalue.dominant.division` of T by ρ(T) + ε, (4s + 1).
        """
        if self._stage is None or not self._stage.fits(state, eps):
            self._stage = _Stage(state, eps)
        stage = self._stage
        status = self._status(state)
        due = status.seen % AUDIT == 0
        streak = min(status.streak, CALM - 1)
        if status.streak >= CALM and not due:
            checked = True
            if not status.alone and status.looked < status.seen:
                look = self._look(status, state)
                checked = look.largest
                if checked:
                    status = status.watched(look.rival)
                    stage.write(status)
            if status.calm and checked and status.alone:
                stage.step(T, status.next_work)
                after = status._replace(seen=status.seen + 1)
                self._post(stage, gram=not after.alone)
                return stage.answer.clone()
            if not (status.good and checked):
                state.counts[Event.FOLLOWED] -= 1
                state.counts[Event.LATE] += 1
                streak = 0
        if status.eigenvalue and cmath.isfinite(status.eigenvalue) and not due:
            latched, counts = state.latched.clone(), state.counts.clone()
            work, grown = status._replace(streak=streak).next_work, 1.0
            for tries in range(TRIES):
                stage.step(T, work)
                self._post(stage, gram=True)
                found = self._status(state)
                look = self._look(found, state, grown)
                # the estimate of the error takes other eigenvalues to be far away
                good = found.calm if look.crowded else found.good
                if look.largest and good:
                    # a second attempt starts at T itself, so it does not show how T changes
                    streak = streak + 1 if found.calm and tries == 0 else 0
                    found = found.watched(look.rival)
                    stage.write(found._replace(streak=streak, crowded=float(look.crowded)))
                    self._post(stage, gram=False)
                    return stage.answer.clone()
                # a call is counted once, and its last result closes the latch
                state.latched.copy_(latched)
                state.counts.copy_(counts)
                again = MOST if look.crowded else MORE
                # without vectors the columns stay, and the same work would find the same
                if not found.vectors and again == work:
                    break
                work = again
                # columns that stayed have not grown
                grown = look.grown if found.vectors else grown
                if look.other is not None:
                    _turn_to(look.other, found.scale, state)
        return self._anew(T, state, eps)

    def _anew(self, T: Tensor, state: Following, eps: float) -> Tensor:
        """The result of the operator that waits, and the state from which to track it."""
        right, left, latched, counts, status, lead, gram = state
        pair = dominant_eigenpair(T, right, left, counts, ~latched)
        rho, eigenvalue, u, v, V, W, event = pair
        right.copy_(V)
        left.copy_(W)
        latched.logical_or_(rho > 1)
        counts.add_(torch.arange(len(Event), device=T.device) == event)
        multiple = event == int(Event.MULTIPLE)
        theta = torch.where(multiple, 0, torch.view_as_real(eigenvalue).to(torch.float64))
        status.zero_()
        gram.zero_()
        _write(status, real=theta[0], imag=theta[1], seen=counts.sum(), latched=latched)
        rows = torch.view_as_real(torch.stack((u, v.conj())).resolve_conj()).mT.to(torch.float64)
        sides = zip((right, left), rows, strict=True)
        lead.copy_(torch.stack([_coordinates(X, Y) for X, Y in sides]))
        self._posted = None
        return division(pair, latched, eps)

    @_one_thread()
    def _look(self, status: Status, state: Following, grown: float = 1.0) -> Look:
        """The tracked eigenvalue among those in the space of the columns.

        Arguments:
            status: That of the step.
            state: Its buffers.
            grown: How much the second half of the columns had grown before, see
                :func:`~.eigenvalue.ritz.growth`.
        """
        gram, followed = self._read(state.gram), status.eigenvalue / status.scale
        # either side: the Ritz values are of the right one alone
        if not gram.isfinite().all():
            return Look(False, math.inf)
        L = factors(gram)
        problem = ritz_problem(gram, L)
        pairs = ritz_pairs(problem)
        if pairs is None:
            return Look(False, math.inf)
        modulus, reach = rival(pairs, followed)
        if status.vectors and reach < 1:
            return Look(True, modulus)
        found = candidate(problem, pairs, torch.finfo(torch.float32).eps)
        if found is None:
            return Look(False, modulus)
        crowded, grown = found.ratio > CROWD, grown * growth(L)
        if not status.vectors or found.tied or (found.blurred and grown > GROWTH):
            return Look(False, modulus, None, crowded, grown)
        off = abs(found.eigenvalue - followed)
        largest = off <= found.bound + NEAR * abs(found.eigenvalue)
        return Look(largest, modulus, None if largest else found, crowded, grown)

    def _post(self, stage: _Stage, *, gram: bool) -> None:
        """Remember what is being copied to the CPU: the status, and perhaps the gram."""
        state = stage.state
        if state.status.is_cuda:
            sent = [(state.status, stage.status)]
            if gram:
                stage.gram.copy_(state.gram, non_blocking=True)
                sent.append((state.gram, stage.gram))
            self._posted = _Posted(sent)

    def _status(self, state: Following) -> Status:
        return Status(*self._read(state.status).tolist())

    def _read(self, source: Tensor) -> Tensor:
        """A tensor of the state on the CPU; without waiting if it was posted."""
        posted = None if self._posted is None else self._posted.value(source)
        return source.to("cpu", copy=True) if posted is None else posted


def _turn_to(other: Candidate, scale: float, state: Following) -> None:
    """Let the next step start from another eigenvalue, given in units of the scale."""
    eigenvalue = scale * other.eigenvalue
    _write(state.status, real=eigenvalue.real, imag=eigenvalue.imag)
    rows = torch.view_as_real(torch.stack((other.x, other.z)).resolve_conj()).mT
    state.lead.copy_(rows)


def _coordinates(X: Tensor, rows: Tensor) -> Tensor:
    """The coordinates of rows in terms of columns, by least squares."""
    X = X.to(torch.float64)
    return torch.linalg.solve_ex(X.mT @ X, (rows @ X).mT).result.mT


class _Posted:
    """Tensors that are being copied to the CPU.

    Arguments:
        sent: Each tensor, and where it is copied to.
    """

    def __init__(self, sent: Sequence[tuple[Tensor, Tensor]]) -> None:
        self._sent = [(source, source._version, place) for source, place in sent]
        self._event = torch.cuda.Event()
        self._event.record(torch.cuda.current_stream(self._sent[0][0].device))

    def value(self, source: Tensor) -> Tensor | None:
        """The copy of a tensor, unless that has changed since; graphs do not raise versions."""
        for sent, version, place in self._sent:
            if sent is source and sent._version == version:
                self._event.synchronize()
                return place
        return None
