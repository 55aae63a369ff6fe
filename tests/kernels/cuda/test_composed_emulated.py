"""The kernels of composed matrices, emulated on the CPU, against a loop in double precision."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from composed_check import NAMES, check, example, rounded
from emulator import COMPILER, emulated
from torch import Tensor

from cayley.kernels.calls import ElmanGradients
from cayley.kernels.cuda import composed as cuda
from cayley.kernels.cuda.composed import Plan, composed, composed_backward

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="no g++ on Linux"),
    pytest.mark.slow,
]

PACKED = torch.tensor([3, 3, 2, 1])


@pytest.fixture(autouse=True)
def on_the_cpu() -> Iterator[None]:
    with emulated():
        yield


# primes that are split and that are not, powers, products of both kinds, and padded vectors
@pytest.mark.parametrize("n", [1, 2, 3, 7, 12, 13, 31, 62, 64, 70, 121, 155, 310])
def test_sizes(n: int) -> None:
    check(example(n, T=3, B=2))


@pytest.mark.parametrize("n", [31, 24])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("sizes", [None, PACKED], ids=["dense", "packed"])
@pytest.mark.parametrize("inputs", [0, 1, 2])
def test_ways(n: int, reverse: bool, sizes: Tensor | None, inputs: int) -> None:
    check(example(n, sizes=sizes, inputs=inputs, reverse=reverse))


@pytest.mark.parametrize(("T", "B"), [(1, 1), (1, 3), (5, 1)])
def test_few_steps_and_rows(T: int, B: int) -> None:
    check(example(22, T, B))


def test_no_rows_and_no_steps() -> None:
    for T, B in ((3, 0), (0, 2)):
        call = rounded(example(6, T, B))
        states = composed(call)
        assert states.h.shape == states.z.shape == call.x.shape
        found = composed_backward(ElmanGradients(states.h), states, call, NAMES)
        for name in NAMES:
            value = found[name]
            assert value is not None
            assert torch.equal(value, torch.zeros_like(getattr(call, name)))


@pytest.mark.parametrize("zero", [0, 1, slice(None)], ids=str)
def test_zero_reflection_vectors(zero: int | slice) -> None:
    call = example(14)
    call.v[zero] = 0
    check(call)


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_reflection_vectors_of_any_length(size: float) -> None:
    call = rounded(example(14))
    one, other = (composed(c).h for c in (call, call._replace(v=call.v * size)))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "plan",
    [
        Plan(70, 1, (10, 7), 32),  # several units and butterflies a thread
        Plan(70, 1, (7, 10), 64),  # not padded
        Plan(62, 1, (31, 2), 96, 1),  # several roles for a warp
        Plan(62, 1, (31, 2), 128, 2),
        Plan(62, 1, (31, 2), 64, 5),  # results that the groups do not divide evenly
        Plan(22, 1, (11, 2), 512, 6),  # one result a group
        Plan(64, 1, (4, 4, 4), 96),
        Plan(48, 1, (2, 2, 2, 2, 3), 128),
    ],
    ids=str,
)
def test_plans(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "best_plan", lambda _, vectors: replace(plan, vectors=vectors))
    check(example(plan.n))


def test_every_run_is_the_same_bit_for_bit() -> None:
    call, names = rounded(example(62, inputs=1)), (*NAMES, "U", "c")
    g = torch.randn(4, 3, 124).float()
    runs = []
    for _ in range(2):
        states = composed(call)
        found = composed_backward(ElmanGradients(g), states, call, names)
        runs.append([*states, *(found[name] for name in names)])
    for one, other in zip(*runs, strict=True):
        assert torch.equal(one, other)
