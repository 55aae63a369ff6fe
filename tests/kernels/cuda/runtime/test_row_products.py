"""The kernel against products in double precision."""

from collections.abc import Callable

import pytest
import torch
from emulator import COMPILER, emulated

from cayley.kernels.cuda.runtime.parts import parts
from cayley.kernels.cuda.runtime.row_products import RowProduct, row_products

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@gpu
@pytest.mark.parametrize(
    ("N", "B", "F", "G"), [(1, 1, 1, 1), (6, 2, 5, 3), (150, 3, 33, 17), (700, 50, 20, 40)]
)
def test_products_and_sums(N: int, B: int, F: int, G: int) -> None:
    a, b, first, x = (torch.randn(*size) for size in ((N, F), (N, G), (B, G), (N, 2)))
    late, plain, total = torch.zeros(F, G), torch.zeros(F, 2), torch.zeros(F)
    tensors = [v.float().cuda() for v in (a, b, first, x, late, plain, total)]
    a, b, first, x, late, plain, total = tensors
    products = [
        RowProduct(a, b, late, (F, G), (F, G), first),
        RowProduct(a, x, plain, (F, 2), (F, 2)),
    ]
    row_products(0, N, products, a, total, (N, F), B)
    exact = a.double().mT
    before = torch.cat((first, b[: N - B])).double()
    for found, expected in ((late, exact @ before), (plain, exact @ x.double())):
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(total.double(), exact.sum(1), rtol=1e-5, atol=1e-4)


@gpu
def test_parts_of_rows() -> None:
    """Only the elements that are asked for are read and written, wherever the rows begin."""
    a, b = torch.randn(40, 6).float().cuda(), torch.randn(40, 5).float().cuda()
    sum, total = torch.full((4, 3), torch.nan).float().cuda(), torch.zeros(5).float().cuda()
    products = [
        RowProduct(a.data_ptr() + 16, b.data_ptr() + 8, sum, (6, 5), (2, 3)),
        RowProduct(a, b, sum.data_ptr() + 24, (6, 5), (1, 3)),
    ]
    row_products(0, 40, products, b, total, (40, 5), 0)
    exact = a.double().mT @ b.double()
    torch.testing.assert_close(sum[:2].double(), exact[4:, 2:], rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(sum[2:3].double(), exact[:1, :3], rtol=1e-5, atol=1e-4)
    assert sum[3].isnan().all()


def check_gates() -> None:
    """Gates side by side in a are apart in the sum; nothing else is summed."""
    a, b = torch.randn(40, 12).float(), torch.randn(40, 5).float()
    if torch.cuda.is_available():
        a, b = a.cuda(), b.cuda()
    sum = torch.zeros_like(a[:12, :5]).contiguous()
    row_products(0, 40, [RowProduct(a, b, sum, (12, 5), (12, 5), gates=4)], None, None, (0, 0), 0)
    apart = a.unflatten(1, (3, 4)).mT.flatten(1).double()
    torch.testing.assert_close(sum.double(), apart.mT @ b.double(), rtol=1e-5, atol=1e-4)


def check_columns() -> None:
    """Rows of a that lie across, beside one that lies along."""
    a, b = torch.randn(70, 37).float(), torch.randn(70, 5).float()
    if torch.cuda.is_available():
        a, b = a.cuda(), b.cuda()
    along, across = (torch.zeros_like(a[:37, :5]).contiguous() for _ in range(2))
    products = [RowProduct(a, b, along, (37, 5), (37, 5))]
    products.append(RowProduct(a.mT.contiguous(), b, across, (1, 5), (37, 5)))
    row_products(0, 70, products, None, None, (0, 0), 0)
    torch.testing.assert_close(across.double(), a.double().mT @ b.double(), rtol=1e-5, atol=1e-4)
    assert torch.equal(along, across)


def check_networks() -> None:
    """Own and shared arrays, rows before others, a sum with room behind it, and columns."""
    G, N, B, F = 3, 40, 4, 37
    shapes = ((G, N, F), (G, N, 5), (B, 5), (N, 3), (G, N, 6))
    tensors = [torch.randn(*shape).float() for shape in shapes]
    if torch.cuda.is_available():
        tensors = [tensor.cuda() for tensor in tensors]
    a, b, first, x, summed = tensors
    late, plain, across = (a.new_zeros(G, *size) for size in ((2 * F, 5), (F, 3), (F, 5)))
    products = [
        RowProduct(a, b, late, (F, 5), (F, 5), first, apart=2 * F * 5, shared=4),
        RowProduct(a, x, plain, (F, 3), (F, 3), shared=2),
        RowProduct(a.mT.contiguous(), b, across, (1, 5), (F, 5)),
    ]
    total = a.new_zeros(G, 6)
    row_products(0, N, products, summed, total, (N, 6), B, G)
    before = torch.cat((first.expand(G, B, 5), b[:, : N - B]), 1)
    expected = ((late[:, :F], before), (plain, x.expand(G, N, 3)), (across, b))
    for found, right in expected:
        exact = a.double().mT @ right.double()
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-4)
    assert not late[:, F:].any()
    torch.testing.assert_close(total, summed.sum(1))


layouts = pytest.mark.parametrize("check", [check_gates, check_columns, check_networks])


@gpu
@layouts
def test_layouts(check: Callable[[], None]) -> None:
    check()


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="no g++ on Linux")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU itself runs it")
@layouts
def test_layouts_emulated(check: Callable[[], None]) -> None:
    with emulated():
        check()


@gpu
def test_no_product() -> None:
    summed, total = torch.randn(9, 70).float().cuda(), torch.zeros(70).float().cuda()
    row_products(0, 9, [], summed, total, (9, 70), 0)
    torch.testing.assert_close(total, summed.sum(0))


def test_parts_lie_apart_and_begin_as_vectors_do() -> None:
    like = torch.zeros(1, dtype=torch.float32)
    rooms = parts(like, 3, 0, 5, 8)
    assert len({id(room.whole) for room in rooms}) == 1
    assert all((room.data_ptr() - rooms[0].data_ptr()) % 16 == 0 for room in rooms)
    for k, room in enumerate(rooms):
        room.view(-1).fill_(k)
    for k, (room, size) in enumerate(zip(rooms, (3, 0, 5, 8), strict=True)):
        view = room.view(size)
        assert view.shape == (size,)
        assert view.data_ptr() == room.data_ptr() or size == 0
        assert (view == k).all()
