"""The kernels against the loop in double precision, and the plans of their transforms."""

import math
from typing import Any

import pytest
import torch
from composed_check import NAMES, check, example, rounded
from torch import Tensor

import cayley
from cayley.kernels.calls import ComposedCall, ElmanGradients
from cayley.kernels.cuda.composed import (
    LARGEST_PRIME,
    LARGEST_RADIX,
    Plan,
    best_plan,
    composed,
    composed_backward,
    prime_factors,
    radices,
    refusal,
)
from cayley.recurrences.composed import prefers_factors

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

PACKED = torch.tensor([5, 5, 3, 1])
# one unit, primes, powers of two, and the sizes of the literature
SIZES = [1, 2, 7, 31, 61, 64, 70, 116, 121, 128, 512, 1024, 2048, 2170]


@pytest.mark.parametrize("n", [*range(1, 200), *SIZES])
def test_radices(n: int) -> None:
    found = radices(n)
    assert math.prod(found) == n
    assert all(r <= LARGEST_RADIX or prime_factors(r) == (r,) for r in found)
    plan = best_plan(n, 2)
    assert not plan.split or (len(found) > 1 and not plan.padded)
    assert plan.threads * 5 >= n
    assert plan.threads % 128 == 0


def test_radices_are_few_and_small() -> None:
    assert radices(512) == (8, 8, 8)
    assert radices(2170) == (31, 10, 7)
    assert radices(22 * 22) == (11, 11, 4)


def test_memory_of_the_largest_network_of_the_paper() -> None:
    """An H200 lets a block have 227 KiB."""
    assert best_plan(2170, 2).memory < 227 * 1024


def test_cosines_and_sines_are_in_the_header() -> None:
    text = Plan(8, 1, (4, 2), 32).sizes(packed=True)
    assert "cosine<4>(int k) { constexpr float values[] = {1.000000000e+00f, 0.0" in text
    assert "constexpr int RADICES[] = {4, 2};" in text
    assert "constexpr bool PACKED = true;" in text


@gpu
@pytest.mark.parametrize("n", SIZES)
def test_sizes(n: int) -> None:
    check(example(n, T=6, B=3), "cuda")


@gpu
@pytest.mark.parametrize("n", [31, 24, 620])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("sizes", [None, PACKED], ids=["dense", "packed"])
@pytest.mark.parametrize("inputs", [0, 1, 2, 20])
def test_ways(n: int, reverse: bool, sizes: Tensor | None, inputs: int) -> None:
    check(example(n, 4, 5, sizes, inputs, reverse=reverse), "cuda")


@gpu
@pytest.mark.parametrize(("T", "B"), [(1, 1), (1, 300), (40, 1)])
def test_few_steps_and_many_rows(T: int, B: int) -> None:
    check(example(70, T, B), "cuda")


def both_ways(call: ComposedCall, g: Tensor) -> list[Tensor | None]:
    states = composed(call)
    found = composed_backward(ElmanGradients(g), states, call, NAMES)
    return [*states, *(found[name] for name in NAMES)]


@gpu
def test_rows_do_not_meet() -> None:
    """A NaN stays in its row."""
    call = rounded(example(62, 5, 4), "cuda")
    g = torch.randn_like(call.x)
    clean = both_ways(call, g)
    x = call.x.clone()
    x[2, 1, 7] = torch.nan
    found = both_ways(call._replace(x=x), g)
    for ours, theirs in zip(found[:3], clean[:3], strict=True):
        assert ours is not None
        assert theirs is not None
        assert torch.equal(ours[:, [0, 2, 3]], theirs[:, [0, 2, 3]])
    assert found[0] is not None
    assert found[0][2:, 1].isnan().any()


@gpu
def test_tensors_that_are_not_contiguous() -> None:
    call = rounded(example(70), "cuda")
    g = torch.randn_like(call.x)
    strided: dict[str, Any] = {
        name: torch.stack([getattr(call, name)] * 2, -1)[..., 0] for name in NAMES
    }
    permutation = torch.stack([call.permutation] * 2, -1)[..., 0]
    others = both_ways(call._replace(**strided, permutation=permutation), g)
    for ours, theirs in zip(others, both_ways(call, g), strict=True):
        assert ours is not None
        assert theirs is not None
        assert torch.equal(ours, theirs)


@gpu
def test_cuda_graphs() -> None:
    call = rounded(example(62), "cuda")
    g = torch.randn_like(call.x)
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        both_ways(call, g)
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        captured = both_ways(call, g)
    other = rounded(example(62), "cuda")
    for name in NAMES:
        getattr(call, name).copy_(getattr(other, name))
    graph.replay()
    for ours, theirs in zip(captured, both_ways(call, g), strict=True):
        assert ours is not None
        assert theirs is not None
        assert torch.equal(ours, theirs)


@gpu
def test_refusals() -> None:
    call = rounded(example(12), "cuda")
    assert refusal(call) is None
    assert refusal(call, ElmanGradients(call.x)) is None
    assert refusal(rounded(example(12, B=0), "cuda")) is None
    assert "first derivatives" in (refusal(call, ElmanGradients(call.x, call.x)) or "")
    assert "float32, not torch.float64" in (refusal(call._replace(w=call.w.double())) or "")
    prime = LARGEST_PRIME + 6
    assert f"{prime} has {prime}" in (refusal(rounded(example(prime), "cuda")) or "")
    assert "do not fit" in (refusal(rounded(example(8192, 1, 1), "cuda")) or "")


@gpu
def test_factors_are_preferred_where_kernels_take_them() -> None:
    def prefers(n: int, dtype: torch.dtype = torch.float32) -> bool:
        return prefers_factors(torch.zeros(3, n, device="cuda", dtype=dtype))

    assert prefers(512)
    assert prefers(2170)
    assert not prefers(170)
    assert not prefers(2 * 257)
    assert not prefers(512, torch.float64)


@gpu
def test_a_layer_that_prefers_factors_compiles() -> None:
    layer = cayley.URNN(1, 256).float().cuda()
    x = torch.randn(3, 2, 1, device="cuda", dtype=torch.float32)
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x)[0], layer(x)[0], rtol=1e-5, atol=1e-5)
