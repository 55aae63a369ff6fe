"""The recurrence whose matrix is a composition and its gradient as one CUDA kernel each.

See :mod:`cayley.recurrences.composed`. A kernel runs all steps. A block computes one sequence, in
its shared memory, with O(n log n) operations a step: W, of diagonal, Fourier, reflection and
permutation matrices, is never formed. Sizes are constants of the compiled code. Packed sequences
are read as they are.
"""

import functools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cayley.kernels.calls import ComposedCall, ElmanGradients, ElmanStates
from cayley.kernels.cuda.runtime.blocks import option_lines
from cayley.kernels.cuda.runtime.chip import RESERVED, chip, no_room
from cayley.kernels.cuda.runtime.nvrtc import Kernel, constants, on, tensor_refusal
from cayley.kernels.cuda.runtime.packed import step_table
from cayley.kernels.cuda.runtime.projection import project_on_cuda
from cayley.kernels.memory import memory_refusal, readable
from cayley.kernels.primes import LARGEST_PRIME, prime_factors
from cayley.kernels.projection import projection_gradients
from cayley.kernels.steps import check_devices

__all__ = [
    "Plan",
    "best_plan",
    "composed",
    "composed_backward",
    "radices",
    "refusal",
    "size_refusal",
]

SPLIT = 11  # primes from here on are for several threads, as src/fourier.cuh explains
LARGEST_RADIX = 16  # of several factors: more need too many registers
FEWEST_THREADS = 256
UNITS = 5  # of a thread: more need too many registers
MOST_THREADS = 512  # for the first stage: more leave each too few registers
LEAST_RESULTS = 3  # of a group: all of its threads read all numbers
SHARE = 128  # threads for which registers are given out: a warp in each quarter of the processor
BANKS = 16  # that of src/fourier.cuh


def refusal(call: ComposedCall, gradients: ElmanGradients | None = None) -> str | None:
    """Why the kernels cannot compute a call, or its gradient; None if they can."""
    if gradients is not None and gradients.z is not None:
        return "the CUDA kernels give first derivatives only"
    h0, n = call.h0, call.h0.shape[1] // 2
    tensors = (call.x, call.w, call.v, call.b, call.U, call.c)
    if reason := tensor_refusal(h0, *tensors, *(gradients or ())):
        return reason
    check_devices(h0, call.permutation)
    if reason := memory_refusal(call.permutation):
        return reason
    return size_refusal(n, h0.device)


@functools.cache
def size_refusal(n: int, device: torch.device) -> str | None:
    """Why the kernels cannot compute n units; None if they can."""
    if n == 0:
        return "the CUDA kernels need a unit at least"
    if (prime := max(prime_factors(n), default=1)) > LARGEST_PRIME:
        return (
            f"the CUDA kernels transform n numbers if no prime factor of n is above "
            f"{LARGEST_PRIME}, and {n} has {prime}"
        )
    if best_plan(n, 2).memory > chip(device.index).memory - RESERVED:
        return no_room(f"{n} complex units", device)
    return None


def composed(call: ComposedCall, out: ElmanStates | None = None) -> ElmanStates:
    """The states of a call, in ``out`` if it is given."""
    x, h0 = readable(project_on_cuda(call.x, call.U, call.c)), readable(call.h0)
    h, z = ElmanStates(torch.empty_like(x), torch.empty_like(x)) if out is None else out
    if len(h0) > 0:
        v, _, factors = _reflections(call.v)
        _launch("forward", 1, call, (x, h0, readable(call.w), v, factors), (h, z))
    return ElmanStates(h, z)


def composed_backward(
    gradients: ElmanGradients, states: ElmanStates, call: ComposedCall, needed: Collection[str]
) -> dict[str, Tensor | None]:
    """Gradients of a call; of x, U and c those that are needed."""
    grad_h, z, h0, w = map(readable, (gradients.h, states.z, call.h0, call.w))
    B, n = len(h0), w.shape[1]
    delta, grad_h0 = torch.empty_like(z), torch.empty_like(h0)
    # summed over the rows afterwards, always in the same order
    partial_w, partial_v, partial_b = (w.new_empty(B, *size) for size in ((3, n), (2, 2, n), (n,)))
    v, lengths, factors = _reflections(call.v)
    if B > 0:
        given, made = (grad_h, z, h0, w, v, factors), (delta, grad_h0)
        _launch("backward", 2, call, given, (*made, partial_w, partial_v, partial_b))
    return {
        "h0": grad_h0,
        "w": partial_w.sum(0),
        "v": partial_v.sum(0) / lengths,
        "b": partial_b.sum(0),
        **projection_gradients(delta, call.x, call.U, needed),
    }


def _reflections(v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The vectors of moderate size, what they were divided by, and the 2/v*v of the former.

    The reflections stay the same, and squares of tiny or huge numbers do not under- or overflow.
    """
    largest = v.abs().amax((-2, -1), keepdim=True)
    lengths = torch.where(largest > 0, largest, 1)
    v = readable(v / lengths)
    square = v.square().sum((-2, -1))
    return v, lengths, torch.where(square > 0, 2 / square, 0)


def _launch(
    direction: str,
    vectors: int,
    call: ComposedCall,
    given: Sequence[Tensor],
    made: Sequence[Tensor],
) -> None:
    """Launch the kernel of a direction.

    Arguments:
        direction: Which of the kernels.
        vectors: How many it transforms at a time.
        call: The call.
        given: What the kernel reads, of all steps first, beside the thresholds and the permutation.
        made: What it writes.
    """
    B, n = len(call.h0), call.w.shape[1]
    table, T = step_table(call.batch_sizes, given[0], B)
    plan, packed = best_plan(n, vectors), call.batch_sizes is not None
    launch = _kernel(call.h0.device.index, f"composed_{direction}", plan, packed)
    units = readable(call.b), call.permutation.contiguous()
    launch(B, *given, *units, *made, table, T, B, int(call.reverse))


@dataclass(frozen=True)
class Plan:
    """How a block transforms vectors, as ``src/fourier.cuh`` describes.

    Attributes:
        n: The numbers of a vector.
        vectors: How many are transformed at a time.
        radices: Their product is n.
        threads: Those of the block.
        groups: Into how many groups the results of a large first radix are divided.
    """

    n: int
    vectors: int
    radices: tuple[int, ...]
    threads: int
    groups: int = 1

    @property
    def split(self) -> bool:
        """Whether several threads share the transforms of the first radix, a prime."""
        return _is_split(self.radices[0])

    @property
    def padded(self) -> bool:
        """Whether vectors have gaps in shared memory."""
        return self.radices[0] % 2 == 0

    @property
    def twiddles(self) -> int:
        """How many factors all stages together have."""
        products = [math.prod(self.radices[:k]) for k in range(len(self.radices))]
        return sum((r - 1) * p for r, p in zip(self.radices[1:], products[1:], strict=True))

    @property
    def memory(self) -> int:
        """Bytes of shared memory: units, buffers and factors, and parts of sums."""
        vector = self.n + (self.n - 1) // BANKS if self.padded else self.n
        numbers = 2 * self.vectors * vector + self.twiddles
        return 48 * self.n + 8 * numbers + 32 * (self.threads // 32)

    def sizes(self, packed: bool) -> str:
        """The header ``sizes.cuh``."""
        flags = {"PACKED": packed, "SPLIT": self.split, "PADDED": self.padded}
        return (
            constants(N=self.n, BATCH=self.vectors, THREADS=self.threads, GROUPS=self.groups)
            + constants(STAGES=len(self.radices), TWIDDLES=self.twiddles, MEMORY=self.memory)
            + f"constexpr int RADICES[] = {{{', '.join(map(str, self.radices))}}};\n"
            + option_lines(tuple((f"bool {name}", str(v).lower()) for name, v in flags.items()))
            + _circles(set(self.radices))
        )


def _circles(radices: Collection[int]) -> str:
    """Functions of the cosine and the sine of 2πk/r, for every radix r."""
    lines = [f"template <int R> __device__ constexpr float {f}(int k);" for f in ("cosine", "sine")]
    for r in sorted(radices):
        for name, quarter in (("cosine", r), ("sine", 0)):
            values = ", ".join(f"{_sine(4 * k + quarter, 4 * r):.9e}f" for k in range(r))
            lines.append(
                f"template <> __device__ constexpr float {name}<{r}>(int k) "
                f"{{ constexpr float values[] = {{{values}}}; return values[k]; }}"
            )
    return "\n".join(lines) + "\n"


def _sine(k: int, r: int) -> float:
    """The sine of 2πk/r, exact where it is 0 or ±1."""
    k %= r
    if 2 * k >= r:
        return -_sine(k - r // 2, r) if 2 * k > r else 0.0
    k = min(k, r // 2 - k)
    return 1.0 if 4 * k == r else math.sin(2 * math.pi * k / r)


def _is_split(radix: int) -> bool:
    return radix >= SPLIT and prime_factors(radix) == (radix,)


@functools.cache
def best_plan(n: int, vectors: int) -> Plan:
    """The plan for vectors of n complex numbers.

    Example:
        >>> best_plan(2170, 2)
        Plan(n=2170, vectors=2, radices=(31, 10, 7), threads=512, groups=1)
    """
    factors = radices(n)
    first = factors[0] if _is_split(factors[0]) else 0
    # a warp for the cosines, and one for the sines, of 32 columns of real numbers
    warps = 2 * -(-2 * vectors * n // (32 * first)) if first else 1
    threads = max(FEWEST_THREADS, -(-n // UNITS), min(MOST_THREADS, 32 * warps))
    threads = min(1024, -(-threads // SHARE) * SHARE)
    groups = min(threads // 32 // warps, first // LEAST_RESULTS // 2)
    return Plan(n, vectors, factors, threads, max(1, groups))


@functools.cache
def radices(n: int) -> tuple[int, ...]:
    """Factors of n for the stages of a Fourier transform: few, and as small as that allows.

    A large prime comes first, and is not alone: the next stage puts its results together.

    Example:
        >>> radices(2170), radices(1024), radices(31), radices(1)
        ((31, 10, 7), (16, 8, 8), (31, 1), (1,))
    """
    first = max(prime_factors(n), default=1)
    if _is_split(first):
        return (first, *(_shortest(n // first)))
    return _shortest(n)


def _shortest(n: int) -> tuple[int, ...]:
    """The shortest of the products that make n, with the least largest factor."""
    return min(_products(n, n), key=lambda factors: (len(factors), factors))


def _products(n: int, largest: int) -> Iterator[tuple[int, ...]]:
    """All products of n, in descending order, of primes and of numbers that are not too large."""
    for first in range(1, min(largest, n) + 1):
        if n % first == 0 and (first <= LARGEST_RADIX or prime_factors(first) == (first,)):
            if first == n:
                yield (n,)
            elif first > 1:
                yield from ((first, *rest) for rest in _products(n // first, first))


@functools.cache
def _kernel(device: int, source: str, plan: Plan, packed: bool) -> Kernel:
    with on(device):
        return Kernel(source, plan.sizes(packed), plan.threads, 1, plan.memory)
