"""Inverses by blocks that are emulated on the CPU, against double precision."""

from collections.abc import Iterator

import pytest
import torch
from emulator import COMPILER, Kernel, emulated
from torch import Tensor

from cayley.kernels.cuda import resolvent as kernels
from cayley.kernels.cuda.resolvent import resolvent, tiling
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


# tiles of one square, of several, as wide as tall or less, and of more than the matrix has
@pytest.mark.parametrize(("n", "processors"), [(1, 2), (33, 5), (97, 5), (97, 9), (160, 11)])
@pytest.mark.parametrize("late", [-1, 0, 1, 2, 3, 4])
def test_is_an_inverse(n: int, processors: int, late: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Kernel, "late", late)
    monkeypatch.setattr(kernels, "chip", lambda _: Chip(processors, 232448, 16))
    A = skew(n, 0.5)
    torch.testing.assert_close(resolvent(A).double(), inverse_of(A), rtol=0, atol=1e-7)


@pytest.mark.parametrize(("n", "processors"), [(31, 2), (64, 2), (130, 10), (192, 7)])
def test_sizes(n: int, processors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "chip", lambda _: Chip(processors, 232448, 16))
    A = skew(n, 0.5)
    torch.testing.assert_close(resolvent(A).double(), inverse_of(A), rtol=0, atol=1e-7)


def test_kinds_of_tiles() -> None:
    found = [
        tiling(n, Chip(processors, 232448, 16)) for n, processors in ((97, 5), (97, 9), (192, 7))
    ]
    assert [(tiles.height, tiles.width) for tiles in found if tiles] == [(2, 2), (2, 1), (3, 2)]


@pytest.mark.parametrize("size", [1e4, 1e6])
def test_large_entries_of_an_odd_matrix(size: float) -> None:
    """The condition of I + A is that of A there, and elimination takes as many digits again."""
    A = skew(65, size)
    X, exact = resolvent(A).double(), inverse_of(A)
    assert torch.linalg.matrix_norm(X - exact) <= 1e-7 + 1e-15 * size**2


def test_large_entries_beside_the_pivots() -> None:
    """Products with the inverses of pivots cost as many digits as they can here."""
    A = skew(96, 0.3)
    A[:32, 32:] *= 200
    A[32:, :32] = -A[:32, 32:].mT
    norm = torch.linalg.matrix_norm(A, 2)
    assert norm > 500
    error = torch.linalg.matrix_norm(resolvent(A).double() - inverse_of(A), 2)
    assert error <= 1e-7 + 1e-16 * norm**3


def test_entries_that_differ_widely() -> None:
    A = skew(65, 5.0) * torch.exp(2 * skew(65, 1.0).abs())
    torch.testing.assert_close(resolvent(A).double(), inverse_of(A), rtol=0, atol=1e-7)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_no_number_stays_so(value: float) -> None:
    A = skew(65, 0.5)
    A[40, 50] = value
    assert not resolvent(A).isfinite().any()


@pytest.mark.parametrize("processors", [2, 5, 64, 108, 132])
def test_tiles_cover_the_matrix_and_run_at_the_same_time(processors: int) -> None:
    chip = Chip(processors, 232448, 16)
    # the smallest and the largest with each number of stripes
    sizes = [n for last in range(32, 1500, 32) for n in (last - 31, last)]
    largest = max(n for n in sizes if tiling(n, chip))
    for n in sizes[: sizes.index(largest) + 1]:
        tiles = tiling(n, chip)
        assert tiles is not None
        assert tiles.rows * tiles.height * kernels.PIVOTS >= n
        assert tiles.columns * tiles.width * kernels.PIVOTS >= n
        assert tiles.blocks <= processors
        assert tiles.memory <= chip.memory
    assert largest == {2: 128, 5: 256, 64: 992, 108: 1280, 132: 1408}[processors]


def test_shared_memory_that_was_not_asked_for_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    tiles = tiling(40, Chip(132, 232448, 16))
    assert tiles is not None
    monkeypatch.setattr(kernels.Tiling, "memory", tiles.memory - 16)
    with pytest.raises(AssertionError, match="beyond"):
        resolvent(skew(40, 0.5))


def test_no_tiles_where_blocks_do_not_run_together() -> None:
    assert tiling(100, Chip(132, 232448, 16, together=False)) is None
    assert tiling(0, Chip(132, 232448, 16)) is None
    with pytest.raises(NotImplementedError, match="accepts, got 2000"):
        resolvent(skew(2000, 0.5))
