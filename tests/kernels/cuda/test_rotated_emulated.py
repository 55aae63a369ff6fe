"""The kernels of rotations, emulated on the CPU, against a loop in double precision."""

from collections.abc import Iterator

import pytest
import torch
from emulator import COMPILER, emulated
from rotated_check import NAMES, check, example, rounded
from torch import Tensor

from cayley.kernels.calls import ElmanGradients
from cayley.kernels.cuda import rotated as cuda
from cayley.kernels.cuda.rotated import rotated, rotated_backward

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="no g++ on Linux"),
    pytest.mark.slow,
]

PACKED = torch.tensor([3, 3, 2, 1])


@pytest.fixture(autouse=True)
def on_the_cpu() -> Iterator[None]:
    with emulated():
        yield


# the FFT's layers or some of neighbours; one unit, odd numbers, and several units a thread
@pytest.mark.parametrize(
    ("n", "layers"), [(1, 0), (1, 2), (2, 0), (2, 1), (5, 3), (32, 0), (129, 2), (150, 1)]
)
def test_sizes(n: int, layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "MOST_THREADS", 128)
    check(example(n, layers, T=3, B=2))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("sizes", [None, PACKED], ids=["dense", "packed"])
@pytest.mark.parametrize("inputs", [0, 2])
def test_ways(reverse: bool, sizes: Tensor | None, inputs: int) -> None:
    check(example(16, sizes=sizes, inputs=inputs, reverse=reverse))


@pytest.mark.parametrize(("T", "B"), [(1, 1), (1, 3), (5, 1)])
def test_few_steps_and_rows(T: int, B: int) -> None:
    check(example(7, 2, T, B))


def test_no_rows_and_no_steps() -> None:
    for T, B in ((3, 0), (0, 2)):
        call = rounded(example(5, 2, T, B))
        states = rotated(call)
        assert states.h.shape == states.z.shape == call.x.shape
        found = rotated_backward(ElmanGradients(states.h), states, call, NAMES)
        for name in NAMES:
            value = found[name]
            assert value is not None
            assert torch.equal(value, torch.zeros_like(getattr(call, name)))


def test_every_run_is_the_same_bit_for_bit() -> None:
    call, names = rounded(example(16, inputs=1)), (*NAMES, "U", "c")
    g = torch.randn(4, 3, 32).float()
    runs = []
    for _ in range(2):
        states = rotated(call)
        found = rotated_backward(ElmanGradients(g), states, call, names)
        runs.append([*states, *(found[name] for name in names)])
    for one, other in zip(*runs, strict=True):
        assert torch.equal(one, other)
