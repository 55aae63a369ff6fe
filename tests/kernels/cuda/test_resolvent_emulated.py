"""Inverses by blocks that are emulated on the CPU, against double precision."""

from collections.abc import Iterator

import pytest
import torch
from emulator import COMPILER, Kernel, emulated
from torch import Tensor

from cayley.kernels.cuda import resolvent as kernels
from cayley.kernels.cuda.resolvent import Tiling, resolvent, tiling
from cayley.kernels.cuda.runtime.chip import Chip

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="no g++ on Linux"),
    pytest.mark.slow,
]


@pytest.fixture(autouse=True)
def on_the_cpu() -> Iterator[None]:
    with emulated():
        yield


def skew(n: int, scale: float) -> Tensor:
    M = scale * torch.randn(n, n)
    return (M.triu(1) - M.triu(1).mT).float()


def inverse_of(A: Tensor) -> Tensor:
    return torch.linalg.inv(torch.eye(len(A)).double() + A.double())


# tiles of one square, of several, and of more than the matrix has
@pytest.mark.parametrize(
    ("n", "processors"), [(1, 2), (31, 2), (33, 5), (64, 2), (97, 5), (97, 7), (130, 10)]
)
@pytest.mark.parametrize("late", [-1, 0, 1])
def test_is_an_inverse(
    n: int, processors: int, late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Kernel, "late", late)
    monkeypatch.setattr(kernels, "chip", lambda _: Chip(processors, 232448, 16))
    A = skew(n, 0.5)
    torch.testing.assert_close(resolvent(A).double(), inverse_of(A), rtol=0, atol=1e-7)
