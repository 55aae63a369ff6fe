"""The gradient of a division, by kernels on a GPU and emulated on the CPU, against the formula."""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch
from emulator import COMPILER, emulated

from cayley.kernels.cuda.rank_two import rank_two_on_device


@pytest.fixture(
    params=[
        pytest.param("cpu", marks=pytest.mark.skipif(COMPILER is None, reason="no g++ on Linux")),
        pytest.param(
            "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
        ),
    ]
)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    with emulated() if request.param == "cpu" else nullcontext():
        yield request.param


@pytest.mark.parametrize("s", [1, 7, 130, 301])
@pytest.mark.parametrize("layout", ["whole", "block", "transposed"])
def test_formula(device: str, s: int, layout: str) -> None:
    shapes = ((s + 3, s + 5), (s, s), (4 * s + 1,))
    G, W, answer = (torch.randn(shape).float().to(device) for shape in shapes)
    G = {"whole": G[:s, :s].contiguous(), "block": G[3:, 5:], "transposed": G[:s, :s].mT}[layout]
    found = rank_two_on_device(G, W.mT.contiguous().mT, answer).double()
    G, W, answer = (tensor.double() for tensor in (G, W, answer))
    f_1, f_2, u_1, u_2 = answer[:-1].view(4, s)
    outer = torch.outer(f_1, u_1) + torch.outer(f_2, u_2)
    expected = G / answer[-1] + (G * W).sum() * outer
    assert (found - expected).norm() <= 1e-5 * ((G * W).norm() * outer.norm() + expected.norm())
