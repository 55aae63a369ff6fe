"""The kernels of rotations against the loop in double precision."""

import pytest
import torch
from rotated_check import NAMES, check, example, rounded
from torch import Tensor

import cayley
from cayley.kernels.calls import ElmanGradients, RotatedCall
from cayley.kernels.cuda.rotated import refusal, rotated, rotated_backward
from cayley.recurrences.rotated import prefers_rotations

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

PACKED = torch.tensor([5, 5, 3, 1])


@pytest.mark.parametrize(
    ("n", "layers"), [(1, 0), (1, 2), (2, 0), (7, 3), (116, 9), (512, 0), (512, 2), (2048, 2)]
)
def test_sizes(n: int, layers: int) -> None:
    check(example(n, layers, T=6, B=3), "cuda")


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("sizes", [None, PACKED], ids=["dense", "packed"])
@pytest.mark.parametrize("inputs", [0, 1, 2, 20])
def test_ways(reverse: bool, sizes: Tensor | None, inputs: int) -> None:
    check(example(64, 0, 4, 5, sizes, inputs, reverse=reverse), "cuda")


@pytest.mark.parametrize(("T", "B"), [(1, 1), (1, 300), (40, 1)])
def test_few_steps_and_many_rows(T: int, B: int) -> None:
    check(example(70, 2, T, B), "cuda")


def both_ways(call: RotatedCall, g: Tensor) -> list[Tensor]:
    """The states, and the gradients."""
    states = rotated(call)
    found = rotated_backward(ElmanGradients(g), states, call, NAMES)
    return [*states, *(value for name in NAMES if (value := found[name]) is not None)]


def test_cuda_graphs() -> None:
    call, other = (rounded(example(62, 2), "cuda") for _ in range(2))
    g = torch.randn_like(call.x)
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        both_ways(call, g)
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        captured = both_ways(call, g)
    for name in NAMES:
        getattr(call, name).copy_(getattr(other, name))
    graph.replay()
    for ours, theirs in zip(captured, both_ways(call, g), strict=True):
        assert torch.equal(ours, theirs)


def test_refusals() -> None:
    call = rounded(example(12, 2), "cuda")
    assert refusal(call) is None
    assert refusal(call, ElmanGradients(call.x)) is None
    assert "first derivatives" in (refusal(call, ElmanGradients(call.x, call.x)) or "")
    assert "float32, not torch.float64" in (refusal(call._replace(phi=call.phi.double())) or "")
    assert "as many layers as 33" in (refusal(rounded(example(12, 33), "cuda")) or "")
    assert "do not fit" in (refusal(rounded(example(16384, 1, 1, 1), "cuda")) or "")


def test_is_preferred_where_the_kernels_have_room() -> None:
    many = torch.zeros(512, device="cuda", dtype=torch.float32)
    assert prefers_rotations(many, 2)
    assert prefers_rotations(many[:64], 8)
    for omega, layers in ((many, 64), (many[:64], 9), (many[:32], 2), (many.double(), 2)):
        assert not prefers_rotations(omega, layers)
    for name in ("reference", "cpu"):
        with cayley.backend(name):
            assert not prefers_rotations(many, 2)
