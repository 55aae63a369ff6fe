"""Tensors whose memory is not what they say reach no kernel as they are."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

from cayley.kernels.memory import memory_refusal, readable, readable_gradient
from cayley.parametrizations import ScaledCayley, scaled_cayley
from cayley.recurrences import elman, elman_loop, gru, gru_loop, lstm, lstm_loop

T, B, H = 4, 3, 5


def lazy(x: Tensor) -> Tensor:
    """The same numbers, with a sign that torch applies when it reads them."""
    result = torch._neg_view(-x)
    assert result.is_neg()
    assert result.is_contiguous()
    return result


def same(x: Tensor) -> Tensor:
    return x


def run(
    name: str, change: Any = same, *, wrap: Any = same, loop: bool = False
) -> tuple[Tensor, ...]:
    """The states of a recurrence and their gradients, tensors changed or wrapped in some way."""
    gates = {"elman": 1, "gru": 3, "lstm": 4}[name]
    function = {
        "elman": (elman, elman_loop),
        "gru": (gru, gru_loop),
        "lstm": (lstm, lstm_loop),
    }[name][loop]
    torch.manual_seed(0)
    leaves = [torch.randn(T, B, gates * H), torch.randn(B, H), torch.randn(gates * H, H)]
    if name == "lstm":
        leaves.insert(1, torch.randn(B, H))
    leaves = [wrap(leaf).requires_grad_() for leaf in leaves]
    h: Any = function(*(change(leaf) for leaf in leaves))
    h = h.h if name == "lstm" else h
    g = change(wrap(torch.randn(T, B, H)))
    return h, *torch.autograd.grad(h, leaves, g)


@pytest.mark.parametrize("name", ["elman", "gru", "lstm"])
def test_signs_that_torch_has_not_applied_yet(name: str) -> None:
    for found, expected in zip(run(name, lazy), run(name, loop=True), strict=True):
        torch.testing.assert_close(found, expected)


def test_the_gradient_of_a_matrix_with_such_signs() -> None:
    map, G = ScaledCayley(5), torch.randn(5, 5)
    (A,) = map.sample()
    A.requires_grad_()
    (expected,) = torch.autograd.grad(scaled_cayley(map.skew(A), map.D), A, G)
    _, pullback = map.with_pullback(A)
    torch.testing.assert_close(pullback(lazy(G))[0], expected)
    torch.testing.assert_close(map(lazy(A.detach())), map(A.detach()))


@pytest.mark.parametrize("name", ["elman", "gru", "lstm"])
def test_zeros_without_memory(name: str) -> None:
    def change(x: Tensor) -> Tensor:
        return x if x.requires_grad else torch._efficientzerotensor(x.shape, dtype=x.dtype)

    _, *gradients = run(name, change)
    assert all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in gradients)


@pytest.mark.parametrize("name", ["elman", "gru", "lstm"])
def test_tensors_that_wrap_others(name: str) -> None:
    """Their class sees the operators, and gives them to both of the tensors that it wraps."""
    found: Any = run(name, wrap=lambda x: TwoTensor(x, x.clone()))
    for pair, expected in zip(found, run(name, loop=True), strict=True):
        torch.testing.assert_close(pair.a, expected)
        torch.testing.assert_close(pair.b, expected)


@pytest.mark.parametrize("name", ["elman", "gru", "lstm"])
def test_fake_tensors_outside_of_their_mode(name: str) -> None:
    function: Any = {"elman": elman, "gru": gru, "lstm": lstm}[name]
    gates = {"elman": 1, "gru": 3, "lstm": 4}[name]
    shapes = [(T, B, gates * H), (B, H), *([(B, H)] if name == "lstm" else []), (gates * H, H)]
    mode = FakeTensorMode()
    h = function(*(mode.from_tensor(torch.zeros(shape)) for shape in shapes))
    assert (h.h if name == "lstm" else h).shape == (T, B, H)


def test_a_matrix_of_a_sharded_layer_is_no_crash() -> None:
    """Of free tensors that wrap others, torch forms the matrix."""
    map = ScaledCayley(5)
    (A,) = map.sample()
    map.D = TwoTensor(map.D, map.D.clone())
    found: Any = map(TwoTensor(A, A.clone()))
    torch.testing.assert_close(found.a, scaled_cayley(map.skew(A), map.D.a))


def test_what_the_gate_says() -> None:
    x = torch.randn(2, 3)
    wrapped = TwoTensor(x, x.clone())
    assert memory_refusal(x, None, torch.nn.Parameter(x)) is None
    assert memory_refusal(x, wrapped) == (
        "kernels read memory, and a TwoTensor has none of its own"
    )
    with pytest.raises(NotImplementedError, match="TwoTensor has none of its own"):
        readable_gradient(wrapped)
    for made in (readable, readable_gradient):
        assert made(x) is x
        assert torch.equal(made(lazy(x)), x)
    assert readable_gradient(x.mT).stride() == x.mT.stride()
    assert readable(x.mT).is_contiguous()
