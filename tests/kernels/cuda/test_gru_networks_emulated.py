"""Several gated networks in one launch, emulated, against the loop in double precision."""

from typing import Any

import pytest
import torch
from emulator import COMPILER, Launches
from teams import force_team
from torch import Tensor
from torch.func import grad, vmap

from cayley.kernels import memory
from cayley.kernels.calls import GruCall, GruGradients, GruStates
from cayley.kernels.cuda import gru
from cayley.kernels.cuda.runtime import projection
from cayley.kernels.operator import Kernels
from cayley.recurrences import gru as recurrence
from cayley.recurrences import gru_loop
from cayley.recurrences.gru import _gru

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="no g++ on Linux"),
    pytest.mark.slow,
    pytest.mark.usefixtures("launches"),
]

H = 9
WEIGHTS = ("W", "b", "U", "c")
owns = pytest.mark.parametrize("own", ["", "x h0"], ids=["shared", "own"])
candidates = pytest.mark.parametrize("candidate", ["modrelu", "tanh"])


def random(*shape: int) -> Tensor:
    """As float32 holds it."""
    return torch.randn(shape).float().double()


def tensors_of(
    G: int, T: int, B: int, inputs: int, candidate: str, own: str
) -> tuple[dict[str, Tensor], dict[str, int | None]]:
    """Those of G networks, of x and h0 shared ones unless ``own`` names them; their dimensions."""
    shapes = {"x": (T, B, inputs or 3 * H), "h0": (B, H)}
    named = {k: random(*(G,) * (k in own.split()), *shape) for k, shape in shapes.items()}
    named["W"] = torch.linalg.qr(random(G, 3, H, H))[0].flatten(1, 2).float().double()
    if candidate == "modrelu":
        named["b"] = -0.3 * torch.rand(G, H).float().double()
    if inputs:
        named["U"] = random(G, 3 * H, inputs)
    if inputs and candidate == "tanh":
        named["c"] = random(G, 3 * H)
    return named, {k: 0 if k in WEIGHTS or k in own.split() else None for k in named}


def leaves_of(k: int, named: dict[str, Tensor], dims: dict[str, int | None]) -> dict[str, Any]:
    """Those of network k."""
    return {
        name: (value if dims[name] is None else value[k]).clone().requires_grad_()
        for name, value in named.items()
    }


def assert_near(ours: Any, theirs: Tensor, what: str) -> None:
    assert ours.shape == theirs.shape
    error = (ours.double() - theirs).norm() / theirs.norm().clamp(min=1)
    assert error <= 2e-6, f"{what} is off by {error:.1g}"


def check(
    G: int, T: int, B: int, inputs: int, candidate: str, own: str, reverse: bool = False
) -> None:
    """All results and gradients of each network, and the same if x and h0 need none."""
    named, dims = tensors_of(G, T, B, inputs, candidate, own)
    g = random(G, T, B, H)
    single = {name: value.float() for name, value in named.items()}
    stacked: dict[str, Any] = {
        name: value.expand(G, *value.shape) if dims[name] is None else value
        for name, value in single.items()
    }
    call = GruCall(**stacked, reverse=reverse)
    states = gru.gru(call)
    into = GruStates(*(torch.full_like(v, torch.nan) for v in states))
    for one, other in zip(gru.gru(call, into), states, strict=True):
        assert torch.equal(one, other)
    found = gru.gru_backward(GruGradients(g.float()), states, call, [*named])
    weights = [name for name in named if name in WEIGHTS]
    of_weights: Any = gru.gru_backward(GruGradients(g.float()), states, call, weights)
    assert {"x", "h0"}.isdisjoint(of_weights)
    for k in range(G):
        leaves = leaves_of(k, named, dims)
        h = gru_loop(**leaves, reverse=reverse)
        assert_near(states.h[k], h.detach(), "h")
        gradients = torch.autograd.grad(h, [*leaves.values()], g[k])
        for name, gradient in zip(leaves, gradients, strict=True):
            value: Any = found[name]
            assert_near(value[k], gradient, f"the gradient of {name}")
            if name in weights:
                assert torch.equal(value, of_weights[name])


@owns
@candidates
@pytest.mark.parametrize("inputs", [0, 3, 17])
def test_networks_equal_single_ones(
    inputs: int, candidate: str, own: str, launches: Launches
) -> None:
    check(3, 4, 5, inputs, candidate, own, reverse=candidate == "tanh")
    # those of many inputs are multiplied by torch
    multiplied = 0 < inputs <= projection.FEW_INPUTS
    expected = {"gru_forward": 2, "gru_backward": 2, "row_products": 2}
    assert launches == {**expected, **({"project": 2} if multiplied else {})}


@owns
@candidates
def test_products_by_torch(
    candidate: str, own: str, launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gru, "LITTLE", 0)
    check(3, 4, 5, 3, candidate, own, reverse=candidate == "modrelu")
    assert "row_products" not in launches


@candidates
@pytest.mark.parametrize("inputs", [0, 1])
@pytest.mark.parametrize(("G", "T", "B"), [(1, 4, 3), (3, 1, 1), (2, 1, 3), (2, 3, 1)])
def test_odd_sizes(G: int, T: int, B: int, inputs: int, candidate: str) -> None:
    check(G, T, B, inputs, candidate, "h0", reverse=candidate == "tanh")


def test_no_rows() -> None:
    check(2, 3, 0, 2, "tanh", "x h0")


def test_one_network_is_the_kernel_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit, with a dimension for it and without."""
    seen: list[bool] = []
    original = gru.gate_kernel

    def gate_kernel(*arguments: Any) -> Any:
        seen.append(arguments[-1])
        return original(*arguments)

    monkeypatch.setattr(gru, "gate_kernel", gate_kernel)
    named, _ = tensors_of(1, 3, 2, 3, "modrelu", "x h0")
    single: dict[str, Any] = {name: value[0].float() for name, value in named.items()}
    several: dict[str, Any] = {name: value[None] for name, value in single.items()}
    g = torch.randn(3, 2, H).float()
    results = []
    for tensors, given in ((single, g), (several, g[None])):
        call = GruCall(**tensors)
        states = gru.gru(call)
        found: Any = gru.gru_backward(GruGradients(given), states, call, [*named])
        results.append((*states, *(found[name] for name in named)))
    assert seen == [False] * 4
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other[0])


@pytest.mark.parametrize("little", [0, gru.LITTLE])
def test_shared_rows_that_lie_apart(little: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gru, "LITTLE", little)
    named, _ = tensors_of(3, 4, 5, 3, "modrelu", "")
    single: dict[str, Any] = {name: value.float() for name, value in named.items()}
    x, h0 = single.pop("x"), single.pop("h0").expand(3, 5, H)
    g = torch.randn(3, 4, 5, H).float()
    results = []
    for own in (x, torch.stack((x, x), -1)[..., 0]):
        call = GruCall(own.expand(3, *x.shape), h0, **single)
        states = gru.gru(call)
        results.append((*states, gru.gru_backward(GruGradients(g), states, call, ["U"])["U"]))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_nothing_shared_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    original = gru.gate_kernel

    def gate_kernel(*arguments: Any) -> Any:
        kernel = original(*arguments)

        def launch(*given: Any, **options: Any) -> None:
            seen.append([v.dim() for v in given if isinstance(v, Tensor)])
            kernel(*given, **options)

        return launch

    monkeypatch.setattr(gru, "gate_kernel", gate_kernel)
    named, _ = tensors_of(3, 4, 5, 0, "modrelu", "")
    single: dict[str, Any] = {name: value.float() for name, value in named.items()}
    x, h0 = single.pop("x").expand(3, 4, 5, 3 * H), single.pop("h0").expand(3, 5, H)
    call, g = GruCall(x, h0, **single), torch.randn(1).float().expand(3, 4, 5, H)
    gru.gru_backward(GruGradients(g), gru.gru(call), call, [])
    # x, h0, W, b, h, gates; the gradient of h, h, gates, h0, W
    assert seen == [[3, 2, 3, 2, 4, 4], [3, 4, 4, 2, 3]]


def test_who_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    call = GruCall(torch.zeros(4, 5, 3 * H), torch.zeros(5, H), torch.zeros(3 * H, H))
    assert gru.takes_networks(call, 3)
    assert not gru.takes_networks(call, 65536)
    packed = call._replace(x=torch.zeros(9, 3 * H), batch_sizes=torch.tensor([5, 4]))
    assert not gru.takes_networks(packed, 3)
    large = GruCall(torch.zeros(4, 5, 900), torch.zeros(5, 300), torch.zeros(900, 300))
    assert not gru.takes_networks(large, 3)
    force_team(monkeypatch, (2, 2, 128, 4))
    assert not gru.takes_networks(call, 3)


@owns
@pytest.mark.parametrize(("G", "calls"), [(1, 1), (7, 2)])
def test_transforms_make_a_few_calls(
    G: int, calls: int, own: str, launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By vmap of grad, and by autograd of vmap."""
    monkeypatch.setattr(gru, "tensor_refusal", lambda *tensors: memory.memory_refusal(*tensors))
    kernels = Kernels(gru.refusal, gru.gru, gru.gru_backward, gru.takes_networks)
    # pyrefly: ignore[bad-argument-type]
    monkeypatch.setitem(_gru.kernels, "cpu", kernels)
    named, dims = tensors_of(G, 4, 5, 2, "modrelu", own)
    single: dict[str, Any] = {name: value.float().requires_grad_() for name, value in named.items()}
    expected = dict.fromkeys(("project", "gru_forward", "gru_backward", "row_products"), calls)

    def loss(tensors: dict[str, Any]) -> Tensor:
        return recurrence(**tensors).square().sum()

    detached = {name: value.detach() for name, value in single.items()}
    found = vmap(grad(loss), (dims,))(detached)
    assert launches == expected
    launches.clear()
    vmap(loss, (dims,))(single).sum().backward()
    assert launches == expected
    totals: dict[str, Any] = {
        name: value.sum(0) if dims[name] is None else value for name, value in found.items()
    }
    for k in range(G):
        leaves = leaves_of(k, named, dims)
        total = gru_loop(**leaves).square().sum()
        gradients = torch.autograd.grad(total, [*leaves.values()])
        for name, gradient in zip(leaves, gradients, strict=True):
            assert_near(found[name][k], gradient, f"the gradient of {name}")
    for name, value in single.items():
        torch.testing.assert_close(value.grad, totals[name], rtol=1e-5, atol=2e-5)
