"""The kernels that follow an eigenpair, on a GPU and emulated, against the same in torch."""

from collections.abc import Iterator
from contextlib import nullcontext

import eigenpairs
import pytest
import torch
from emulator import COMPILER, emulated
from torch import Tensor

import cayley
from cayley.kernels.cuda.eigenpair import (
    can_follow,
    inverse_iteration,
    normalized_gradient,
    write_answer,
)
from cayley.parametrizations.eigenvalue.tracker import Following, Status

K = 32


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


def problem(real: bool) -> tuple[Tensor, Tensor]:
    """Inner products of columns of which those of A are no multiples, and a start."""
    Y = torch.randn(200, 4 * K)
    lead = torch.randn(2, 2, K)
    if real:
        lead[:, 1] = 0
    return Y.mT @ Y, lead


def test_only_float32_on_a_gpu_is_followed() -> None:
    assert not can_follow(torch.zeros(2, 2, dtype=torch.float32))
    if torch.cuda.is_available():
        T = torch.zeros(2, 2, dtype=torch.float32, device="cuda")
        assert can_follow(T)
        assert not can_follow(T.double())
        with cayley.backend("reference"):
            assert not can_follow(T)


@pytest.mark.slow
@pytest.mark.parametrize("real", [True, False])
@pytest.mark.parametrize("terms", [1, 5])
def test_inverse_iteration(device: str, real: bool, terms: int) -> None:
    gram, lead = problem(real)
    expected = eigenpairs.inverse_iteration(gram, lead, terms)
    found = inverse_iteration(gram.to(device), lead.to(device), terms)
    for name, ours, theirs in zip(expected._fields, found, expected, strict=True):
        assert (ours.cpu() - theirs).norm() <= 1e-7 * theirs.norm(), name


@pytest.mark.slow
def test_dependent_columns_are_not_sound(device: str) -> None:
    gram, lead = problem(real=False)
    gram[K + 5] = 0
    gram[:, K + 5] = 0
    assert inverse_iteration(gram.to(device), lead.to(device), 4).sound.tolist() == [1, 0]


@pytest.mark.parametrize("eps", [0.0, 0.1])
@pytest.mark.parametrize("latched", [True, False])
@pytest.mark.parametrize("kind", ["above one", "below one", "rough", "dependent"])
def test_answer(device: str, kind: str, latched: bool, eps: float) -> None:
    """All that is written: for good vectors, for none, and for columns that are dependent."""
    s, terms = 130, 4
    A = torch.randn(s, s) / s**0.5
    theta, E = torch.linalg.eig(A)
    j = int((theta.abs() + 1e-9 * theta.imag.sign()).argmax())
    vectors = [E[:, j], torch.linalg.inv(E)[j]]
    u = torch.stack([torch.stack((x.real, x.imag)) for x in vectors])
    u = u + (1.0 if kind == "rough" else 1e-3) * u.norm() / s**0.5 * torch.randn(u.shape)
    Au = torch.stack((u[0] @ A.mT, u[1] @ A))
    residual = torch.randn(2, 2, s)
    found = eigenpairs.inverse_iteration(*problem(real=False), terms)
    if kind == "dependent":
        found = found._replace(sound=torch.tensor([1.0, 0.0]))
    state = Following.zeros(s, dtype=torch.float32)
    state.latched.fill_(latched)
    state.counts.copy_(torch.arange(8))
    scale = (0.5 if kind == "below one" else 2.0) / float(theta[j].abs())
    status = torch.arange(1.0, 1.0 + len(Status._fields))
    status[:2] *= scale / status[:2].norm()
    places = [status, torch.randn(2, 2, K), state.latched, state.counts]
    places += [torch.full((4 * s + 1,), 7.0, dtype=torch.float32), torch.tensor(False)]
    ours = [place.to(device, copy=True) for place in places]
    eigenpairs.write_answer(u, Au, residual, found, places, terms, eps)
    moved = type(found)(*(x.contiguous().to(device) for x in found))
    u, Au, residual = (x.to(device) for x in (u, Au, residual))
    write_answer(u, Au, residual, moved, ours, terms, eps)
    assert bool(places[-1]) == (kind in ("above one", "below one"))
    for one, other in zip(ours, places, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-6, atol=1e-9)
    assert Status(*ours[0].tolist()).streak == 10.0


@pytest.mark.slow
@pytest.mark.parametrize("s", [1, 7, 130, 301])
@pytest.mark.parametrize("layout", ["whole", "block", "transposed"])
def test_gradient(device: str, s: int, layout: str) -> None:
    shapes = ((s + 3, s + 5), (s, s), (4 * s + 1,))
    G, W, answer = (torch.randn(shape).float().to(device) for shape in shapes)
    G = {"whole": G[:s, :s].contiguous(), "block": G[3:, 5:], "transposed": G[:s, :s].mT}[layout]
    found = normalized_gradient(G, W.mT.contiguous().mT, answer).double()
    G, W, answer = (tensor.double() for tensor in (G, W, answer))
    f_1, f_2, u_1, u_2 = answer[:-1].view(4, s)
    outer = torch.outer(f_1, u_1) + torch.outer(f_2, u_2)
    expected = G / answer[-1] + (G * W).sum() * outer
    assert (found - expected).norm() <= 1e-5 * ((G * W).norm() * outer.norm() + expected.norm())
