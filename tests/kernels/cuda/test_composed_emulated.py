"""The kernels of composed matrices, emulated on the CPU, against a loop in double precision."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from emulator import COMPILER, emulated
from torch import Tensor

from cayley.activations import modrelu_stacked
from cayley.kernels.calls import ComposedCall, ElmanGradients
from cayley.kernels.cuda import composed as cuda
from cayley.kernels.cuda.composed import Plan, best_plan, composed, composed_backward
from cayley.kernels.steps import step_order, step_sizes
from cayley.parametrizations.composition import compose
from cayley.parametrizations.householder import unit

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="no g++ on Linux"),
    pytest.mark.slow,
]

PACKED = torch.tensor([3, 3, 2, 1])
FORWARD = ("x", "h0", "w", "v", "b")


@pytest.fixture(autouse=True)
def on_the_cpu() -> Iterator[None]:
    with emulated():
        yield


def loop(call: ComposedCall) -> Tensor:
    """The states by torch, with a gradient."""
    x = call.x if call.U is None else torch.nn.functional.linear(call.x, call.U, call.c)
    sizes = step_sizes(x, call.batch_sizes)
    steps = list(x.flatten(0, 1).split(sizes) if call.batch_sizes is None else x.split(sizes))
    h, n = call.h0, call.w.shape[1]
    for t in step_order(len(steps), call.reverse):
        rows = len(steps[t])
        Wh = compose(torch.complex(h[:rows, :n], h[:rows, n:]), call.w, call.v, call.permutation)
        state = modrelu_stacked(steps[t] + torch.cat((Wh.real, Wh.imag), -1), call.b)
        steps[t] = state
        h = torch.cat((state, h[rows:]))
    return torch.cat(steps).view(*x.shape[:-1], 2 * n)


def example(
    n: int, T: int = 4, B: int = 3, sizes: Tensor | None = None, inputs: int = 0, **options: Any
) -> ComposedCall:
    """A random call, as float32 holds it."""
    steps = (T, B) if sizes is None else (int(sizes.sum()),)
    tensors: dict[str, Any] = {
        "x": torch.randn(*steps, inputs or 2 * n),
        "h0": torch.randn(B, 2 * n),
        "w": math.pi * (2 * torch.rand(3, n) - 1),
        # not short by chance: their gradients grow as the inverse of their lengths
        "v": (2 * n) ** 0.5 * unit(torch.randn(2, 2, n), (-2, -1)),
        "b": -0.3 * torch.rand(n),
    }
    if inputs:
        tensors |= {"U": torch.randn(2 * n, inputs), "c": torch.randn(2 * n)}
    tensors = {name: tensor.float().double() for name, tensor in tensors.items()}
    return ComposedCall(
        **tensors, permutation=torch.randperm(n), batch_sizes=sizes, **options
    )


def check(call: ComposedCall) -> None:
    """States and all gradients."""
    names = [name for name in (*FORWARD, "U", "c") if getattr(call, name) is not None]
    leaves = {name: getattr(call, name).requires_grad_() for name in names}
    h = loop(call)
    g = torch.randn(h.shape).float()
    theirs = [h.detach(), *torch.autograd.grad(h, [*leaves.values()], g.double())]
    call = call._replace(**{name: leaf.detach().float() for name, leaf in leaves.items()})
    states = composed(call)
    found = composed_backward(ElmanGradients(g), states, call, names)
    for name, one, other in zip(
        ("h", *names), (states.h, *(found[name] for name in names)), theirs, strict=True
    ):
        assert one is not None
        error = (one.double() - other).norm() / other.norm().clamp(min=1)
        assert error <= 2e-6, f"{name} is off by {error:.1g}"


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
        call = example(6, T, B)
        call = call._replace(**{name: getattr(call, name).float() for name in FORWARD})
        states = composed(call)
        assert states.h.shape == states.z.shape == call.x.shape
        found = composed_backward(ElmanGradients(states.h), states, call, FORWARD)
        for name in FORWARD:
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
    call = example(14)
    short = call._replace(v=(call.v[0].float() * size).double()[None].repeat(2, 1, 1))
    call = short._replace(v=short.v / size)
    one, other = (
        composed(c._replace(**{name: getattr(c, name).float() for name in FORWARD}))
        for c in (short, call)
    )
    torch.testing.assert_close(one.h, other.h, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "plan",
    [
        Plan(70, 1, (10, 7), 32),  # several units and butterflies a thread
        Plan(70, 1, (7, 10), 64),  # not padded
        Plan(62, 1, (31, 2), 64),  # one group, and fewer warps than roles have
        Plan(62, 1, (31, 2), 512),  # more groups
        Plan(64, 1, (4, 4, 4), 96),
        Plan(48, 1, (2, 2, 2, 2, 3), 128),
    ],
    ids=str,
)
def test_plans(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "best_plan", lambda _, vectors: replace(plan, vectors=vectors))
    check(example(plan.n))


def test_every_run_is_the_same_bit_for_bit() -> None:
    call = example(62, inputs=1)
    named = {name: getattr(call, name).float() for name in (*FORWARD, "U", "c")}
    call = call._replace(**named)
    g = torch.randn(4, 3, 124).float()
    runs = []
    for _ in range(2):
        states = composed(call)
        found = composed_backward(ElmanGradients(g), states, call, list(named))
        runs.append([*states, *(found[name] for name in named)])
    for one, other in zip(*runs, strict=True):
        assert torch.equal(one, other)


def test_plan_of_the_paper() -> None:
    """2170 complex units, and shared memory that an H200 has."""
    plan = best_plan(2170, 2)
    assert plan.radices == (31, 10, 7)
    assert plan.memory < 232448 - 1024
