"""Several networks in a launch, emulated on the CPU, against the loop in double precision."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from emulator import COMPILER, Kernel, Launches
from teams import force_plan
from torch import Tensor
from torch.func import grad, vmap

import cayley
from cayley.activations import ACTIVATIONS
from cayley.kernels import memory
from cayley.kernels.calls import ElmanCall, ElmanGradients, ElmanStates
from cayley.kernels.crowds import crowded
from cayley.kernels.cuda import elman
from cayley.kernels.cuda.runtime import projection
from cayley.kernels.cuda.runtime.clusters import Plan
from cayley.kernels.operator import Kernels, _OperatorRule
from cayley.kernels.transforms import Room
from cayley.recurrences import elman as recurrence
from cayley.recurrences import elman_loop
from cayley.recurrences.elman import _elman

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="no g++ on Linux"),
    pytest.mark.slow,
    pytest.mark.usefixtures("launches"),
]

H = 22
PLANS = {
    "a block": Plan(H, 1, 2, 1, 4, 8, 2, 1),
    "a cluster": Plan(H, 2, 1, 3, 8, 32, 2, 0),
    "a cluster of one pass": Plan(H, 4, 4, 1, 4, 8, 2, 1),
}
WEIGHTS = ("W", "b", "U", "c")


def random(*shape: int) -> Tensor:
    """As float32 holds it."""
    return torch.randn(shape).float().double()


def tensors_of(
    G: int, T: int, B: int, inputs: int, nonlinearity: str, own: str
) -> dict[str, Tensor]:
    """Those of G networks, of x and h0 shared ones where they are not named in ``own``."""
    shapes = {"x": (T, B, inputs or H), "h0": (B, H)}
    named = {k: random(*(G,) * (k in own.split()), *shape) for k, shape in shapes.items()}
    named["W"] = torch.linalg.qr(random(G, H, H))[0].float().double()
    if thresholds := ACTIVATIONS[nonlinearity].thresholds(H):
        named["b"] = -0.3 * torch.rand(G, thresholds).float().double()
    if inputs:
        named["U"] = random(G, H, inputs)
    if inputs and nonlinearity == "tanh":
        named["c"] = random(G, H)
    return named


def stacked(G: int, named: dict[str, Tensor], own: str) -> dict[str, Any]:
    """The same as kernels take them."""
    single = {name: value.float() for name, value in named.items()}
    return {
        name: value if name in WEIGHTS or name in own.split() else value.expand(G, *value.shape)
        for name, value in single.items()
    }


def assert_near(ours: Any, theirs: Tensor, what: str) -> None:
    assert ours.shape == theirs.shape
    error = (ours.double() - theirs).norm() / theirs.norm().clamp(min=1)
    assert error <= 2e-6, f"{what} is off by {error:.1g}"


def check(
    G: int, T: int, B: int, inputs: int, nonlinearity: str, own: str, reverse: bool = False
) -> None:
    """All results and gradients of each network."""
    named, g = tensors_of(G, T, B, inputs, nonlinearity, own), random(G, T, B, H)
    options: dict[str, Any] = {"nonlinearity": nonlinearity, "reverse": reverse}
    call = ElmanCall(**stacked(G, named, own), **options)
    states = elman.elman(call)
    found = elman.elman_backward(ElmanGradients(g.float()), states, call, [*named])
    for k in range(G):
        leaves: dict[str, Any] = {
            name: (value[k] if name in WEIGHTS or name in own.split() else value)
            .clone()
            .requires_grad_()
            for name, value in named.items()
        }
        h = elman_loop(**leaves, **options)
        assert_near(states.h[k], h.detach(), "h")
        gradients = torch.autograd.grad(h, [*leaves.values()], g[k])
        for name, gradient in zip(leaves, gradients, strict=True):
            value: Any = found[name]
            assert_near(value[k], gradient, f"the gradient of {name}")


@pytest.mark.parametrize("own", ["", "x h0"], ids=["shared", "own"])
@pytest.mark.parametrize("inputs", [0, 1, 3, 17])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_networks_equal_single_ones(
    plan: Plan,
    inputs: int,
    own: str,
    launches: Launches,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    force_plan(monkeypatch, plan)
    check(3, 4, 5, inputs, "tanh" if inputs == 1 else "modrelu", own)
    # those of many inputs are multiplied by torch
    multiplied = 0 < inputs <= projection.FEW_INPUTS and not (inputs == 1 and plan.passes == 1)
    expected = {"elman_forward": 1, "elman_backward": 1, "row_products": 1}
    assert launches == expected | ({"project": 1} if multiplied else {})


@pytest.mark.parametrize("nonlinearity", ["modrelu", "tanh"])
def test_many_sums_are_made_by_a_library(
    nonlinearity: str, launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    force_plan(monkeypatch, PLANS["a block"])
    for name in ("FEW", "MOST_ROWS"):
        with monkeypatch.context() as patch:
            patch.setattr(elman, name, 0)
            check(3, 4, 5, 17, nonlinearity, "")
    assert launches == {"elman_forward": 2, "elman_backward": 2}


def test_gradient_of_an_empty_matrix_is_no_launch(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    force_plan(monkeypatch, PLANS["a block"])
    T, B = 4, 5
    sizes = {"W": (H, H), "h0": (B, H), "x": (T, B, 0), "U": (H, 0)}
    tensors: dict[str, Any] = {name: random(*size).float() for name, size in sizes.items()}
    call = ElmanCall(**tensors)
    found = elman.elman_backward(
        ElmanGradients(random(T, B, H).float()), elman.elman(call), call, ["U"]
    )
    assert found["U"] is not None
    assert found["U"].shape == (H, 0)
    assert "row_products" not in launches


@pytest.mark.parametrize("nonlinearity", ["tanh", "modrelu_stacked"])
@pytest.mark.parametrize(("G", "T", "B"), [(1, 4, 3), (3, 1, 1), (2, 1, 3), (2, 3, 1)])
def test_odd_sizes(
    G: int, T: int, B: int, nonlinearity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    force_plan(monkeypatch, PLANS["a block"])
    check(G, T, B, 1, nonlinearity, "h0", reverse=nonlinearity == "tanh")


def test_who_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    x, h0, W = torch.zeros(4, 5, H), torch.zeros(5, H), torch.zeros(H, H)
    call = ElmanCall(x, h0, W)
    assert elman.takes_networks(call, 3)
    assert not elman.takes_networks(call, 65536)
    packed = call._replace(x=torch.zeros(9, H), batch_sizes=torch.tensor([5, 4]))
    assert not elman.takes_networks(packed, 3)
    force_plan(monkeypatch, None)
    assert not elman.takes_networks(call, 3)


@pytest.fixture(params=[False, True], ids=["results joined", "results in one place"])
def on_kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator runs on the emulated kernels, also where a call writes a part of all results."""
    force_plan(monkeypatch, PLANS["a block"])
    monkeypatch.setattr(elman, "tensor_refusal", lambda *tensors: memory.memory_refusal(*tensors))
    kernels = Kernels(elman.refusal, elman.elman, elman.elman_backward, elman.takes_networks)
    # pyrefly: ignore[bad-argument-type]
    monkeypatch.setitem(_elman.kernels, "cpu", kernels)

    def room(rule: _OperatorRule, networks: int, flat: Sequence[Any], grouped: bool) -> Room:
        def fill(parts: Sequence[Tensor], *own: Any) -> None:
            elman.elman(_elman.fields.unflatten(own), ElmanStates(*parts))

        shapes = _elman.shapes(_elman.fields.unflatten(flat))
        return Room([flat[0].new_full((networks, *v.shape), torch.nan) for v in shapes], fill)

    if request.param:
        monkeypatch.setattr(_OperatorRule, "room", room)


def check_transforms(G: int, own: str, launches: Launches, calls: int) -> None:
    """All gradients, by vmap of grad and by autograd of vmap, and the number of calls."""
    T, B, nonlinearity = 4, 5, "modrelu"
    named = tensors_of(G, T, B, 1, nonlinearity, own)
    dims = {name: 0 if name in WEIGHTS or name in own.split() else None for name in named}
    single: dict[str, Any] = {name: value.float().requires_grad_() for name, value in named.items()}

    def loss(tensors: dict[str, Any]) -> Tensor:
        return recurrence(**tensors, nonlinearity=nonlinearity).square().sum()

    detached = {name: value.detach() for name, value in single.items()}
    found = vmap(grad(loss), (dims,))(detached)
    each = ("elman_forward", "elman_backward", "row_products")
    assert launches == dict.fromkeys(each, calls)
    launches.clear()
    vmap(loss, (dims,))(single).sum().backward()
    assert launches == dict.fromkeys(each, calls)
    totals: dict[str, Any] = {
        name: value.sum(0) if dims[name] is None else value for name, value in found.items()
    }
    for k in range(G):
        leaves: dict[str, Any] = {
            name: (value if dims[name] is None else value[k]).clone().requires_grad_()
            for name, value in named.items()
        }
        h = elman_loop(**leaves, nonlinearity=nonlinearity)
        gradients = torch.autograd.grad(h.square().sum(), [*leaves.values()])
        for name, gradient in zip(leaves, gradients, strict=True):
            assert_near(found[name][k], gradient, f"the gradient of {name}")
    for name, value in single.items():
        torch.testing.assert_close(value.grad, totals[name], rtol=1e-5, atol=2e-5)


@pytest.mark.usefixtures("on_kernels")
@pytest.mark.parametrize("own", ["", "x h0"], ids=["shared", "own"])
@pytest.mark.parametrize(("G", "calls"), [(1, 1), (2, 2), (3, 2), (16, 2)])
def test_transforms_make_a_few_calls(G: int, calls: int, own: str, launches: Launches) -> None:
    check_transforms(G, own, launches, calls)


@pytest.mark.usefixtures("on_kernels")
@pytest.mark.parametrize(("most", "calls"), [(1, 10), (2, 5)])
def test_no_call_is_larger_than_kernels_take(
    most: int, calls: int, launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elman, "MOST_NETWORKS", most)
    check_transforms(10, "x", launches, calls)


@pytest.mark.usefixtures("on_kernels")
def test_plans_are_those_for_all_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of a call of a few, since all calls run at the same time."""
    seen = []

    class Seen(Kernel):
        def __call__(self, *arguments: Any, **options: Any) -> None:
            super().__call__(*arguments, **options)
            seen.append(plans[-1])

    plans: list[tuple[int, bool]] = []

    def best_plan(H: int, B: int, chip: Any, is_complex: bool, networks: int, apart: bool) -> Plan:
        plans.append((networks, apart))
        return PLANS["a block"]

    monkeypatch.setattr(elman, "best_plan", best_plan)
    monkeypatch.setattr(elman, "Kernel", Seen)
    elman._kernel.cache_clear()
    W, x, h0 = torch.randn(7, H, H), torch.randn(4, 5, H), torch.zeros(5, H)
    vmap(grad(lambda W: recurrence(x, h0, W, nonlinearity="tanh").sum()))(W)
    assert seen == [(7, False)] * 4
    seen.clear()
    with crowded(3):
        recurrence(x, h0, W[0], nonlinearity="tanh")
    recurrence(x, h0, W[0], nonlinearity="tanh")
    assert seen == [(3, True), (1, False)]


@pytest.mark.usefixtures("on_kernels")
@pytest.mark.parametrize(("G", "calls"), [(1, 1), (3, 2), (6, 2)])
def test_levels_and_second_derivatives(G: int, calls: int, launches: Launches) -> None:
    """Two levels of vmap make as many calls for each network of the inner one.

    Other orders use loops.
    """
    inner, T, B = 2, 4, 5
    named = tensors_of(G * inner, T, B, 1, "modrelu", "")
    own: dict[str, Any] = {
        name: value.float().unflatten(0, (G, inner)) if name in WEIGHTS else value.float()
        for name, value in named.items()
    }
    dims = {name: 0 if name in WEIGHTS else None for name in named}
    first = {name: value[:, 0] if name in WEIGHTS else value for name, value in own.items()}

    def loss(tensors: dict[str, Any]) -> Tensor:
        return recurrence(**tensors, nonlinearity="modrelu").square().sum()

    def twice(tensors: dict[str, Any]) -> Tensor:
        leaves = {name: value.clone().requires_grad_() for name, value in tensors.items()}
        total = vmap(loss, (dims,))(leaves).sum()
        (slope,) = torch.autograd.grad(total, leaves["W"], create_graph=True)
        return torch.autograd.grad(slope.square().sum(), leaves["W"])[0]

    nested = vmap(vmap(grad(loss), (dims,)), (dims,))(own)
    each = ("elman_forward", "elman_backward", "row_products")
    assert launches == dict.fromkeys(each, inner * calls)
    second = twice(first)
    again = vmap(grad(lambda t: grad(loss)(t)["W"].square().sum()), (dims,))(first)["W"]
    with cayley.backend("reference"):
        exact = vmap(vmap(grad(loss), (dims,)), (dims,))(own)
        for found in (second, again):
            torch.testing.assert_close(found, twice(first), rtol=1e-3, atol=1e-2)
    for name, value in exact.items():
        assert_near(nested[name], value.double(), name)
