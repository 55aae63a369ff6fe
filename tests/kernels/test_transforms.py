"""Recurrences under vmap and grad: derivatives of every order, and who is asked for a rule."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, jvp, stack_module_state, vmap

import cayley
from cayley.kernels import transforms
from cayley.kernels.operator import _OperatorRule
from cayley.kernels.transforms import Room
from cayley.layers.recurrent import Recurrent

T, B, I, N, G = 3, 2, 3, 4, 2  # noqa: E741
MAKERS: dict[str, Callable[[], Recurrent]] = {
    "elman": lambda: cayley.RNN(I, N),
    "elman and its matrix": lambda: cayley.ScoRNN(I, N),
    "gru": lambda: cayley.NCGRU(I, N),
    "lstm": lambda: cayley.LSTM(I, N),
    "lstm, normalised": lambda: cayley.LSTM(I, N, norm="atn", window=2),
}


@pytest.fixture(
    params=[(), ("room",), ("groups",), ("room", "groups"), ("room", "groups", "one call")],
    ids=["a node for each", "a node for all", "groups", "groups with room", "one group"],
    autouse=True,
)
def ways_of_a_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with what only kernels of a GPU do.

    They write the results of all networks in one place, and take several networks in a call.
    """
    alone, alone_backward = _OperatorRule.forward, _OperatorRule.backward

    def forward(rule: _OperatorRule, *flat: Any) -> Sequence[Tensor]:
        networks = _networks(flat)
        if networks == 0:
            return alone(rule, *flat)
        results = [alone(rule, *own) for own in _each(networks, flat)]
        return [torch.stack(values) for values in zip(*results, strict=True)]

    def backward(
        rule: _OperatorRule, gradients: Any, results: Any, flat: Any, needs: Any
    ) -> Sequence[Tensor | None]:
        networks = _networks(flat)
        if networks == 0:
            return alone_backward(rule, gradients, results, flat, needs)
        parts = [_each(networks, each) for each in (gradients, results, flat)]
        found = [alone_backward(rule, G, h, own, needs) for G, h, own in zip(*parts, strict=True)]
        return [
            None if values[0] is None else torch.stack([*values])
            for values in zip(*found, strict=True)
        ]

    def _networks(flat: Sequence[Any]) -> int:
        h0 = flat[1]
        return len(h0) if h0.dim() == 3 else 0

    def _each(networks: int, flat: Sequence[Any]) -> list[tuple[Any, ...]]:
        own = [v.unbind() if isinstance(v, Tensor) else (v,) * networks for v in flat]
        return [*zip(*own, strict=True)]

    def room(rule: _OperatorRule, networks: int, flat: Sequence[Any], grouped: bool) -> Room:
        def fill(parts: Sequence[Tensor], *own: Any) -> None:
            for part, value in zip(parts, rule.forward(*own), strict=True):
                part.copy_(value)

        first = rule.forward(*flat)
        return Room([value.new_full((networks, *value.shape), torch.nan) for value in first], fill)

    if "room" in request.param:
        monkeypatch.setattr(_OperatorRule, "room", room)
    if "groups" in request.param:
        monkeypatch.setattr(_OperatorRule, "takes_together", lambda rule, networks, _: networks)
        monkeypatch.setattr(_OperatorRule, "forward", forward)
        monkeypatch.setattr(_OperatorRule, "backward", backward)
    if "one call" in request.param:
        monkeypatch.setattr(transforms, "CALLS", 1)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_second_derivatives(make: Callable[[], Recurrent]) -> None:
    """By grad of grad, by autograd of grad, by autograd twice, and in forward mode: the loop."""
    layers, x = [make() for _ in range(G)], torch.randn(T, B, I)
    parameters, buffers = stack_module_state(layers)
    p = {name: value.detach() for name, value in parameters.items()}
    name = next(name for name in p if "weight_hh" in name)
    v = {key: torch.randn_like(value) * (key == name) for key, value in p.items()}

    def loss(p: dict[str, Tensor], b: dict[str, Tensor]) -> Tensor:
        return functional_call(layers[0], (p, b), (x,))[0].square().sum()

    def along(p: dict[str, Tensor], b: dict[str, Tensor], v: dict[str, Tensor]) -> Tensor:
        return (grad(loss)(p, b)[name] * v[name]).sum()

    def forward_mode(p: dict[str, Tensor], b: dict[str, Tensor], v: dict[str, Tensor]) -> Tensor:
        return jvp(lambda p: grad(loss)(p, b), (p,), (v,))[1]

    expected = vmap(forward_mode)(p, buffers, v)
    torch.testing.assert_close(vmap(grad(along))(p, buffers, v), expected)
    leaves = {key: value.clone().requires_grad_() for key, value in p.items()}
    wanted = (*leaves.values(),)
    first = vmap(grad(loss))(leaves, buffers)[name]
    found = torch.autograd.grad((first * v[name]).sum(), wanted, materialize_grads=True)
    torch.testing.assert_close(dict(zip(leaves, found, strict=True)), expected)
    total = vmap(loss)(leaves, buffers).sum()
    (first,) = torch.autograd.grad(total, (leaves[name],), create_graph=True)
    found = torch.autograd.grad((first * v[name]).sum(), wanted)
    torch.testing.assert_close(dict(zip(leaves, found, strict=True)), expected)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_many_gradients_at_a_time(make: Callable[[], Recurrent]) -> None:
    layers, x = [make() for _ in range(G)], torch.randn(T, B, I, requires_grad=True)
    parameters, buffers = stack_module_state(layers)
    leaves = (x, *parameters.values())
    run = vmap(lambda p, b: functional_call(layers[0], (p, b), (x,))[0])
    y = run(parameters, buffers)
    directions = torch.randn(2, *y.shape)

    def gradients(g: Tensor, **options: Any) -> tuple[Tensor, ...]:
        return torch.autograd.grad(y, leaves, g, retain_graph=True, **options)

    expected = [torch.stack(pair) for pair in zip(*map(gradients, directions), strict=True)]
    torch.testing.assert_close([*vmap(gradients)(directions)], expected)
    torch.testing.assert_close([*gradients(directions, is_grads_batched=True)], expected)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_networks_of_networks(make: Callable[[], Recurrent]) -> None:
    """Two levels of vmap, of which the inner one has a W of its own or shares it."""
    layers, x = [make() for _ in range(2 * G)], torch.randn(G, T, B, I)
    parameters, buffers = stack_module_state(layers)
    nested = [
        {name: value.detach().unflatten(0, (2, G)) for name, value in tree.items()}
        for tree in (parameters, buffers)
    ]

    def loss(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(layers[0], (p, b), (x,))[0].square().sum()

    own, stacked = nested
    found = vmap(vmap(grad(loss)), (0, 0, None))(own, stacked, x)
    shared = vmap(vmap(grad(loss), (None, None, 0)), (0, 0, None))(parameters, buffers, x)
    for k, layer in enumerate(layers):
        named = dict(layer.named_parameters())
        for g in range(G):
            gradients = torch.autograd.grad(layer(x[g])[0].square().sum(), [*named.values()])
            for name, gradient in zip(named, gradients, strict=True):
                torch.testing.assert_close(shared[name][k, g], gradient)
                if k % G == g:
                    torch.testing.assert_close(found[name][k // G, g], gradient)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_gradients_of_what_networks_share(make: Callable[[], Recurrent]) -> None:
    """By autograd outside of vmap, with networks along another dimension than the first."""
    layers = [make() for _ in range(G)]
    parameters, buffers = stack_module_state(layers)
    p = {key: value.detach().movedim(0, -1).requires_grad_() for key, value in parameters.items()}
    x = torch.randn(T, B, I, requires_grad=True)

    def output(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(layers[0], (p, b), (x,))[0]

    total = vmap(output, (-1, 0, None))(p, buffers, x).square().sum()
    found = torch.autograd.grad(total, [x, *p.values()], materialize_grads=True)
    alone = torch.stack([layer(x)[0].square().sum() for layer in layers]).sum()
    torch.testing.assert_close(total, alone)
    torch.testing.assert_close(found[0], torch.autograd.grad(alone, x, retain_graph=True)[0])
    for k, layer in enumerate(layers):
        named = [*layer.parameters()]
        expected = torch.autograd.grad(alone, named, retain_graph=True, materialize_grads=True)
        for gradient, own in zip(found[1:], expected, strict=True):
            torch.testing.assert_close(gradient[..., k], own)
