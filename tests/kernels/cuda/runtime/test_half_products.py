"""Sums of outer products by tensor cores against double precision, also emulated."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from emulator import COMPILER, H200, counted, emulated
from torch import Tensor

from cayley.kernels.cuda.runtime import half_products as module
from cayley.kernels.cuda.runtime import wide_products as wide_products_module
from cayley.kernels.cuda.runtime.half_products import half_products, outer_products_on_cuda
from cayley.kernels.cuda.runtime.wide_products import wide_products
from cayley.kernels.steps import outer_products

compiles = pytest.mark.skipif(COMPILER is None, reason="no g++ on Linux")
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

# G, K, M, N: one row, sizes that do not fill a square or a depth, several squares, and splits
Sizes = tuple[int, int, int, int]
SIZES = [(0, 1, 1, 1), (0, 33, 5, 130), (0, 300, 132, 20), (3, 40, 8, 12), (0, 64, 128, 128)]
# and those of wide sums
WIDE = [(0, 1, 8, 8), (0, 600, 136, 24), (3, 300, 8, 16)]
CASES = [*((half_products, sizes) for sizes in SIZES), *((wide_products, sizes) for sizes in WIDE)]
LARGE = [
    (half_products, (16, 39200, 512, 128)),
    *((products, (0, 39200, 1024, 1024)) for products in (half_products, wide_products)),
]
Products = Callable[..., Tensor]


def name(case: Products | Sizes) -> str:
    return getattr(case, "__name__", str(case))


def shifted(b: Tensor, first: Tensor | None, reverse: bool) -> Tensor:
    if first is None:
        return b
    K = b.shape[-2]
    both = (b, first) if reverse else (first, b)
    return torch.cat(both, -2).narrow(-2, first.shape[-2] if reverse else 0, K)


def check(products: Products, sizes: Sizes, F: int, reverse: bool, device: str = "cpu") -> None:
    """To the precision of float32, for each column however small its numbers are."""
    G, K, M, N = sizes
    networks = (G,) if G else ()
    a, b = torch.randn(*networks, K, M), torch.randn(*networks, K, N)
    wide = 10.0 ** torch.linspace(8, -8, N)
    a, b = (a * 10.0 ** torch.linspace(-12, 12, M)).float(), (b * wide).float()
    first = (torch.randn(*networks, F, N) * wide).float() if F else None
    there = None if first is None else first.to(device)
    found = products(a.to(device), b.to(device), there, reverse)
    rows = shifted(b.double(), None if first is None else first.double(), reverse)
    exact = a.double().mT @ rows
    # what rounding each product would give
    size = a.double().abs().mT @ rows.abs()
    error = ((found.cpu() - exact).abs() / size).max()
    assert error <= 1e-6, f"{error:.1g}"


@compiles
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("F", [0, 1, 7])
@pytest.mark.parametrize(("products", "sizes"), CASES, ids=name)
def test_double_precision(products: Products, sizes: Sizes, F: int, reverse: bool) -> None:
    with emulated():
        check(products, sizes, min(F, sizes[1]), reverse)


@compiles
def test_wide_sums_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    # two parts of 256 rows at a time, of three
    monkeypatch.setattr(wide_products_module, "MOST", 2 * 3 * 8 * 16)
    with counted() as launches:
        check(wide_products, (3, 600, 8, 16), 7, False)
    assert launches["halves"] == 2


def check_long_sum(products: Products, K: int, most: float, device: str = "cpu") -> None:
    """Of positive numbers, whose errors do not cancel if all are rounded in one direction."""
    a, b = torch.rand(K, 8).float().to(device), torch.rand(K, 16).float().to(device)
    exact = a.double().mT @ b.double()
    error = ((products(a, b) - exact).abs() / exact).max()
    assert error <= most, f"{error:.1g}"


@compiles
def test_errors_of_a_long_sum_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with emulated():
        # one block for all of it
        monkeypatch.setattr(module, "chip", lambda _: replace(H200, processors=1))
        check_long_sum(half_products, 3000, 6e-7)


@compiles
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("networks", [(), (3,)], ids=["one", "several"])
@pytest.mark.parametrize("wide", [0, 2**20])
def test_sums_over_steps(
    wide: int, networks: tuple[int, ...], reverse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MANY", 0)
    monkeypatch.setattr(module, "WIDE", wide)
    delta, h = torch.randn(*networks, 5, 3, 16).float(), torch.randn(*networks, 5, 3, 8).float()
    h0 = torch.randn(3, 8).float().expand(*networks, 3, 8)
    with counted() as launches, torch.no_grad():
        found = outer_products_on_cuda(delta, h, h0, None, reverse)
        exact = outer_products(delta.double(), h.double(), h0.double(), None, reverse)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)
    assert launches["halves" if wide == 0 else "half_products"] == 1


@gpu
@pytest.mark.parametrize(("products", "sizes"), [*CASES, *LARGE], ids=name)
def test_on_a_gpu(products: Products, sizes: Sizes) -> None:
    check(products, sizes, min(50, sizes[1]), False, "cuda")


@gpu
@pytest.mark.parametrize("products", [half_products, wide_products], ids=name)
def test_errors_of_a_long_sum_do_not_add_up_on_a_gpu(products: Products) -> None:
    # a tensor core cuts each of 16 products and what they are added to at 24 bits or more
    check_long_sum(products, 40000, 17 * 2.0**-23, "cuda")
