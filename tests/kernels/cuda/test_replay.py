"""A function that is replayed gives what it gave when it was called."""

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import cayley
from cayley.kernels.cuda.replay import Captured, Replay
from cayley.parametrizations import (
    ComplexScaledCayley,
    Parametrization,
    ScaledCayley,
    StructuredMatrix,
)

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def affine(x: Tensor, a: Tensor, b: Tensor) -> list[Tensor]:
    return [a * x + b, x - b]


def test_is_the_function_on_a_cpu() -> None:
    x, a, b = torch.randn(3, 4).unbind()
    for _ in range(3):
        torch.testing.assert_close(Replay(affine)([x, a], [b]), affine(x, a, b))


@pytest.mark.parametrize(
    "device",
    ["cpu", pytest.param("cuda", marks=gpu)],
)
def test_a_captured_function_works_in_its_places(device: str) -> None:
    x = torch.zeros(3, device=device)
    captured, calls = Captured(x.device), []

    def step() -> Tensor:
        calls.append(1)
        return x.add_(1)

    for time in range(1, 6):
        assert captured(step).tolist() == [time] * 3
    assert len(calls) == (2 if device == "cuda" else 5)


@gpu
def test_calls_do_not_change_one_another() -> None:
    replay, b = Replay(affine), torch.randn(4, device="cuda")
    inputs = [torch.randn(2, 4, device="cuda").unbind() for _ in range(6)]
    found = [replay(x, [b]) for x in inputs]
    for x, y in zip(inputs, found, strict=True):
        torch.testing.assert_close(y, affine(*x, b=b))
    other = torch.randn(2, 7, device="cuda").unbind()
    torch.testing.assert_close(replay(other, [b[:1]]), affine(*other, b=b[:1]))


@gpu
def test_streams_have_graphs_of_their_own() -> None:
    replay, b = Replay(affine), torch.randn(4, device="cuda")
    x = torch.randn(2, 4, device="cuda").unbind()
    for _ in range(4):
        replay(x, [b])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = [replay(x, [b]) for _ in range(4)]
    torch.cuda.current_stream().wait_stream(stream)
    for y in found:
        torch.testing.assert_close(y, affine(*x, b=b))


@gpu
def test_back_ends_have_graphs_of_their_own() -> None:
    replay = Replay(lambda x: [x + (cayley.kernels.dispatch.backend_in_force() == "reference")])
    x = [torch.zeros(2, device="cuda")]
    for _ in range(3):
        for name, expected in (("auto", 0.0), ("reference", 1.0)):
            with cayley.backend(name):
                (found,) = replay(x, [])
            assert found.tolist() == [expected, expected]


maps = pytest.mark.parametrize("map", [ScaledCayley(200), ComplexScaledCayley(60)], ids=repr)


def on_gpu(map: Parametrization) -> tuple[Any, Tensor]:
    """A matrix on the GPU, and a gradient for it."""
    matrix: Any = StructuredMatrix(map, device="cuda", dtype=torch.float32)
    return matrix, torch.randn_like(matrix().detach())


def inner(W: Tensor, G: Tensor) -> Tensor:
    return (W * G.conj()).sum().real


@gpu
@maps
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_matrices_are_replayed_as_they_were_formed(map: Parametrization) -> None:
    W, G = on_gpu(map)
    losses, expected = [], []
    for step in range(6):
        if step == 4:
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
        try:
            losses.append(inner(W(), G))
        finally:
            torch.cuda.set_sync_debug_mode("default")
        expected.append(torch.autograd.grad(inner(W.map(*W.free), G), W.free))
        with torch.no_grad():
            torch._foreach_mul_(W.free, 0.9)
    # each with the matrices of its own forward pass, whatever came after it
    for loss, gradients in zip(losses, expected, strict=True):
        found = torch.autograd.grad(loss, W.free)
        torch.testing.assert_close(found, gradients, rtol=1e-4, atol=1e-4)


@gpu
@maps
def test_a_graph_of_a_whole_step_forms_the_matrix_too(map: Parametrization) -> None:
    W, G = on_gpu(map)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.autograd.grad(inner(W(), G), W.free)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        formed = W()
        gradients = torch.autograd.grad(inner(formed, G), W.free)
    for _ in range(2):
        with torch.no_grad():
            torch._foreach_mul_(W.free, 0.9)
        graph.replay()
        # others: autograd has seen these on the stream of the graph
        free = [X.detach().clone().requires_grad_() for X in W.free]
        expected = W.map(*free)
        torch.testing.assert_close(formed, expected, rtol=1e-5, atol=1e-5)
        by_autograd = torch.autograd.grad(inner(expected, G), free)
        torch.testing.assert_close(gradients, by_autograd, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", [ScaledCayley, ComplexScaledCayley])
def test_maps_with_a_replay_are_copied_pickled_and_forgotten(
    make: Callable[[int], Parametrization],
) -> None:
    W = StructuredMatrix(make(5))
    W().abs().sum().backward()
    for twin in (copy.deepcopy(W), pickle.loads(pickle.dumps(W))):
        torch.testing.assert_close(twin(), W())
    map = weakref.ref(W.map)
    del W, twin
    gc.collect()
    assert map() is None
