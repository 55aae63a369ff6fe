"""What following an eigenpair remembers, and the step that changes it, in fixed places."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cayley.kernels.cuda.eigenpair import settle_on_device
from cayley.parametrizations.eigenvalue.dominant import NOISE, SCOUTS, Event
from cayley.parametrizations.eigenvalue.tracking import Track, track

__all__ = [
    "MOST",
    "Following",
    "Stage",
    "Status",
    "Work",
    "columns_of",
    "lead_of",
    "memory_size",
    "write",
]

# The residual that decides between little and much work.
FINE = 2e-4
# The largest estimated error of ρ, and the largest residual of good eigenvectors, in units of ρ;
# nobody waits for the next answer where an error was smaller by MARGIN.
ERROR = 5e-7
RESIDUAL = 1e-3
MARGIN = 5
# Residuals from which on vectors are none: what is known already stays.
ROUGH = 0.1


class Work(NamedTuple):
    """How much a step does.

    Attributes:
        products: With all columns, before anything else.
        terms: Of the series that corrects the eigenvectors.
    """

    products: int
    terms: int


LITTLE, MUCH = Work(3, 4), Work(3, 24)
# For a matrix that has changed so much that other eigenvectors have to come into the columns.
MOST = Work(8, 24)


class Following(NamedTuple):
    """The buffers that a :class:`~.eigenvalue.tracker.Tracker` reads and writes.

    Attributes:
        right, left: The columns to start from, (s, k).
        latched: Whether the latch is closed, ().
        counts: How often each :class:`~.eigenvalue.dominant.Event` has happened.
        memory: A :class:`Status`, the coordinates of the eigenvectors in the columns, (2, 2, k),
            and all inner products of the last step, (4k, 4k): the bits of float64 numbers, as
            int64, so that a change of precision leaves them alone.
    """

    right: Tensor
    left: Tensor
    latched: Tensor
    counts: Tensor
    memory: Tensor


class Status(NamedTuple):
    """What the last call left in the memory.

    Attributes:
        real, imag: λ; 0 if there is none to follow.
        r_u, r_v: The norms of the residuals, in units of |λ|.
        start: The larger of them before the series.
        overlap: |v*u|.
        scale: The |λ| of the call before.
        seen: The number of calls.
        latched: Whether the latch is closed.
        streak: How many good answers in a row were waited for.
        terms: The number of terms of the series.
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

    @property
    def eigenvalue(self) -> complex:
        """λ, with a nonnegative imaginary part."""
        return complex(self.real, abs(self.imag))

    @property
    def calm(self) -> bool:
        """Whether the next answer will be good, if T changes as it did; that is a good one too."""
        return self.good and MARGIN * self.r_u * self.r_v <= ERROR * self.overlap

    @property
    def good(self) -> bool:
        """Whether ρ is right, and the eigenvectors are where anybody needs them; NaN is not."""
        precise = self.r_u * self.r_v <= ERROR * self.overlap
        lax = not self.latched and abs(self.eigenvalue) <= 1
        return precise and (lax or max(self.r_u, self.r_v) <= RESIDUAL * self.overlap)

    @property
    def vectors(self) -> bool:
        """Whether the columns follow T, though they may be rough; NaN does not."""
        return max(self.r_u, self.r_v) < ROUGH

    @property
    def next_work(self) -> Work:
        """As much as a change like the last one needs."""
        if not self.terms or not self.start > 0:
            return MUCH
        # each term shortens the residual by about the same factor
        shortened = (max(self.r_u, self.r_v) / self.start) ** (LITTLE.terms / self.terms)
        return LITTLE if self.start * shortened <= FINE else MUCH


STATUS = len(Status._fields)


def memory_size(k: int) -> int:
    """The length of a memory for k columns; none are followed for k = 0."""
    return STATUS + 4 * k + 16 * k * k if k else 0


class Stage:
    """Tensors in fixed places, and the graphs that work on them.

    Arguments:
        state: The buffers.
        eps: What is added to the spectral radius.

    Attributes:
        answer: What a :class:`~.eigenvalue.tracker.Tracker` returns.
        pinned: The memory as the CPU sees it; its status, some time after every step.
    """

    def __init__(self, state: Following, eps: float) -> None:
        s, k = state.right.shape
        device = state.right.device
        self.state, self.eps = state, eps
        self.T = torch.empty(s, s, dtype=torch.float64, device=device)
        self.answer = torch.empty(4 * s + 1, dtype=state.right.dtype, device=device)
        self.ok = torch.empty((), dtype=torch.bool, device=device)
        self.noise = torch.zeros(2, s, k, dtype=torch.float64, device="cpu")
        generator = torch.Generator("cpu").manual_seed(s)
        scouts = torch.randn(2, s, SCOUTS, generator=generator, dtype=torch.float64, device="cpu")
        self.noise[..., -SCOUTS:] = NOISE / s**0.5 * scouts
        self.noise = self.noise.to(device)
        on_gpu = device.type == "cuda"
        self.pinned = torch.empty(
            len(state.memory), dtype=torch.int64, device="cpu", pin_memory=on_gpu
        )
        self._graphs: dict[Work, torch.cuda.CUDAGraph | None] = {}

    def fits(self, state: Following, eps: float) -> bool:
        """Whether these are the same buffers, in the same places."""
        return eps == self.eps and all(
            a is b and a.data_ptr() == b.data_ptr() for a, b in zip(state, self.state, strict=True)
        )

    def step(self, T: Tensor, work: Work) -> None:
        """Follow the eigenpair to T."""
        self.T.copy_(T)
        if not T.is_cuda:
            self._run(work)
            return
        with torch.cuda.device(T.device):
            if work not in self._graphs:
                # what torch and the driver load at the first time is no part of a graph
                self._graphs[work] = None
                self._run(work)
                return
            graph = self._graphs[work]
            if graph is None:
                graph = self._graphs[work] = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    self._run(work)
            graph.replay()

    def _run(self, work: Work) -> None:
        right, left, latched, counts, memory = self.state
        numbers, lead = memory.view(torch.float64), lead_of(memory, right.shape[1])
        scale = torch.linalg.vector_norm(numbers[:2])
        A = torch.stack((self.T, self.T.mT)).div_(scale)
        columns = torch.stack((right, left))
        found = track(A, columns + self.noise, lead, *work)
        places = (latched, counts, self.answer, self.ok)
        numbers[len(numbers) - found.gram.numel() :].copy_(found.gram.flatten())
        if A.is_cuda:
            settle_on_device(
                *(found.u, found.Au, found.residual, found.small, (memory, *places)),
                *(work.terms, self.eps),
            )
        else:
            settle(found, memory, places, work.terms, self.eps)
        columns = torch.where(self.ok, found.columns.to(columns.dtype), columns)
        right.copy_(columns[0])
        left.copy_(columns[1])
        # what the next call looks at is on its way to the CPU
        self.pinned[:STATUS].copy_(memory[:STATUS], non_blocking=True)


def settle(found: Track, memory: Tensor, places: Sequence[Tensor], terms: int, eps: float) -> None:
    """Write what a step has found; src/quotient.cu does the same."""
    latched, counts, answer, ok = places
    numbers = memory.view(torch.float64)
    scale = torch.linalg.vector_norm(numbers[:2])
    u, w = torch.complex(found.u[:, 0], found.u[:, 1])
    Au, wA = torch.complex(found.Au[:, 0], found.Au[:, 1])
    norms = torch.linalg.matrix_norm(found.u)
    c = w @ u
    theta = (w @ Au) / c
    rest = torch.stack((Au - theta * u, wA - theta * w))
    residuals = torch.linalg.vector_norm(rest, dim=-1) / norms / theta.abs()
    rho = scale * theta.abs()
    ok.copy_((found.small.sound == 1).all() & (residuals < ROUGH).all() & (rho > 0))
    latched.logical_or_(ok & (rho > 1))
    denominator = torch.where(latched, torch.where(ok, rho, scale) + eps, 1.0)
    factor = (theta / theta.abs()).conj() / (c * denominator)
    f = torch.where(latched, -(factor * w), 0)
    rows = torch.stack((f.real, -f.imag, u.real, u.imag))
    answer.copy_(torch.cat((torch.where(ok, rows, 0.0).flatten(), denominator[None])))
    lead = lead_of(memory, found.columns.shape[-1])
    lead.copy_(torch.where(ok, found.small.rows @ found.small.factor, lead))
    counts[Event.FOLLOWED] += 1
    write(
        memory,
        real=torch.where(ok, scale * theta.real, numbers[0]),
        imag=torch.where(ok, scale * theta.imag, numbers[1]),
        r_u=residuals[0],
        r_v=residuals[1],
        start=(torch.linalg.matrix_norm(found.residual) / norms).max(),
        overlap=c.abs() / norms.prod(),
        scale=scale,
        seen=counts.sum(),
        latched=latched,
        terms=terms,
    )


def write(memory: Tensor, **values: Tensor | float) -> None:
    """Change some numbers of the status."""
    numbers = memory.view(torch.float64)
    for name, value in values.items():
        place = numbers[Status._fields.index(name)]
        place.copy_(value) if isinstance(value, Tensor) else place.fill_(value)


def columns_of(memory: Tensor) -> int:
    """The k of ``memory_size(k)``."""
    return round(((len(memory) - STATUS) / 16 + 1 / 64) ** 0.5 - 1 / 8)


def lead_of(memory: Tensor, k: int) -> Tensor:
    """The coordinates of the eigenvectors, (2, 2, k)."""
    return memory[STATUS : STATUS + 4 * k].view(torch.float64).view(2, 2, k)
