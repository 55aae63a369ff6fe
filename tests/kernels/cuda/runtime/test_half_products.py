"""Sums of outer products by tensor cores against double precision, also emulated."""

from dataclasses import replace

import pytest
import torch
from emulator import COMPILER, H200, emulated
from torch import Tensor

from cayley.kernels.cuda.runtime import half_products as module
from cayley.kernels.cuda.runtime.half_products import half_products, outer_products_on_cuda
from cayley.kernels.steps import outer_products

compiles = pytest.mark.skipif(COMPILER is None, reason="no g++ on Linux")
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

# G, K, M, N: one row, sizes that do not fill a square or a depth, several squares, and splits
SIZES = [(0, 1, 1, 1), (0, 33, 5, 130), (0, 300, 132, 20), (3, 40, 8, 12), (0, 64, 128, 128)]


def shifted(b: Tensor, first: Tensor | None, reverse: bool) -> Tensor:
    if first is None:
        return b
    K = b.shape[-2]
    both = (b, first) if reverse else (first, b)
    return torch.cat(both, -2).narrow(-2, first.shape[-2] if reverse else 0, K)


def check(sizes: tuple[int, int, int, int], F: int, reverse: bool, device: str = "cpu") -> None:
    """To the precision of float32, for each column however small its numbers are."""
    G, K, M, N = sizes
    networks = (G,) if G else ()
    a, b = torch.randn(*networks, K, M), torch.randn(*networks, K, N)
    wide = 10.0 ** torch.linspace(8, -8, N)
    a, b = (a * 10.0 ** torch.linspace(-12, 12, M)).float(), (b * wide).float()
    first = (torch.randn(*networks, F, N) * wide).float() if F else None
    there = None if first is None else first.to(device)
    found = half_products(a.to(device), b.to(device), there, reverse)
    rows = shifted(b.double(), None if first is None else first.double(), reverse)
    exact = a.double().mT @ rows
    # what rounding each product would give
    size = a.double().abs().mT @ rows.abs()
    error = ((found.cpu() - exact).abs() / size).max()
    assert error <= 1e-6, f"{error:.1g}"


@compiles
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("F", [0, 1, 7])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_double_precision(sizes: tuple[int, int, int, int], F: int, reverse: bool) -> None:
    with emulated():
        check(sizes, min(F, sizes[1]), reverse)


def check_long_sum(K: int, most: float, device: str = "cpu") -> None:
    """Of positive numbers, whose errors do not cancel if all are rounded in one direction."""
    a, b = torch.rand(K, 3).float().to(device), torch.rand(K, 2).float().to(device)
    exact = a.double().mT @ b.double()
    error = ((half_products(a, b) - exact).abs() / exact).max()
    assert error <= most, f"{error:.1g}"


@compiles
def test_errors_of_a_long_sum_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with emulated():
        # one block for all of it
        monkeypatch.setattr(module, "chip", lambda _: replace(H200, processors=1))
        check_long_sum(3000, 6e-7)


@compiles
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("networks", [(), (3,)], ids=["one", "several"])
def test_sums_over_steps(
    networks: tuple[int, ...], reverse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MANY", 0)
    delta, h = torch.randn(*networks, 5, 3, 8).float(), torch.randn(*networks, 5, 3, 6).float()
    h0 = torch.randn(3, 6).float().expand(*networks, 3, 6)
    with emulated(), torch.no_grad():
        found = outer_products_on_cuda(delta, h, h0, None, reverse)
        exact = outer_products(delta.double(), h.double(), h0.double(), None, reverse)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)


@gpu
@pytest.mark.parametrize("sizes", [*SIZES, (0, 39200, 1024, 1024), (16, 39200, 512, 128)], ids=str)
def test_on_a_gpu(sizes: tuple[int, int, int, int]) -> None:
    check(sizes, min(50, sizes[1]), False, "cuda")


@gpu
def test_errors_of_a_long_sum_do_not_add_up_on_a_gpu() -> None:
    # a tensor core cuts each of 16 products and what they are added to at 24 bits or more
    check_long_sum(40000, 17 * 2.0**-23, "cuda")
