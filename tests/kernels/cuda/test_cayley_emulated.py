"""Small matrices by kernels that are emulated on the CPU, against double precision."""

from collections.abc import Iterator

import pytest
import torch
from emulator import COMPILER, Kernel, emulated
from torch import Tensor

from cayley.kernels.cuda import cayley as kernels
from cayley.kernels.cuda.cayley import _blocks, cayley, cayley_backward, neumann
from cayley.kernels.cuda.runtime.chip import Chip
from cayley.parametrizations import NeumannCayley, skew_symmetric
from cayley.parametrizations.neumann import update_inverse_
from cayley.parametrizations.polar import refine
from cayley.parametrizations.skew import diagonal_entries, last_diagonal

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="no g++ on Linux"),
    pytest.mark.slow,
]


@pytest.fixture(autouse=True)
def on_the_cpu() -> Iterator[None]:
    with emulated():
        yield


def entries(n: int, bandwidth: int | None = None) -> Tensor:
    return (0.5 * torch.randn(diagonal_entries(n, 1, last_diagonal(n, bandwidth)))).float()


def signs(n: int) -> Tensor:
    return (2 * torch.randint(2, (n,)) - 1).float()


# of one block, of two, of four, and of eight, the last of which has fewer columns
@pytest.mark.parametrize(
    ("n", "bandwidth"), [(2, None), (15, None), (33, 3), (33, None), (69, None), (130, 7)]
)
@pytest.mark.parametrize("late", [-1, 1])
def test_transform_and_its_gradient(
    n: int, bandwidth: int | None, late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Kernel, "late", late)
    x, D, G = entries(n, bandwidth), signs(n), torch.randn(n, n)
    exact = x.double().requires_grad_()
    inverse = torch.linalg.inv(torch.eye(n) + skew_symmetric(exact, n, bandwidth))
    expected = (2 * inverse - torch.eye(n)) * D.double()
    (gradient,) = torch.autograd.grad(expected, exact, G.double())
    diagonals = last_diagonal(n, bandwidth)
    W, X, copied = cayley(x, D, diagonals)
    torch.testing.assert_close(W.double(), expected.detach(), rtol=0, atol=1e-6)
    torch.testing.assert_close(X.double(), inverse.detach(), rtol=0, atol=1e-6)
    assert torch.equal(copied, D)
    found = cayley_backward(G.float(), X, D, diagonals)
    torch.testing.assert_close(found.double(), gradient, rtol=0, atol=1e-5 * n)


@pytest.mark.parametrize("n", [15, 33])
def test_networks_by_one_launch(n: int) -> None:
    bandwidth, G = 7, 3
    x = torch.stack([entries(n, bandwidth) for _ in range(G)])
    D, gradients = torch.stack([signs(n) for _ in range(G)]), torch.randn(G, n, n).float()
    W, X, copied = cayley(x, D, bandwidth)
    assert torch.equal(copied, D)
    found = cayley_backward(gradients, X, D, bandwidth)
    for g in range(G):
        alone = cayley(x[g], D[g], bandwidth)
        assert torch.equal(W[g], alone[0])
        assert torch.equal(X[g], alone[1])
        assert torch.equal(found[g], cayley_backward(gradients[g], X[g], D[g], bandwidth))


@pytest.mark.parametrize("order", [1, 2])
def test_an_inverse_that_is_followed(order: int) -> None:
    """Anew, by the series, and anew after a step that is too long for it."""
    n, tolerance = 19, 1e-2
    map, D, x, eye = NeumannCayley(n).float(), signs(n), entries(n), torch.eye(n)
    state = [map.inverse, map.point, map.residual, map.updates, map.refreshes]
    exact = [v.double() if v.is_floating_point() else v.clone() for v in state]
    for step in (0.0, 1e-4, 1.0):
        x = (x + step * torch.randn(len(x))).float()
        update_inverse_(
            *exact, entries=x.double(), order=order, tolerance=tolerance, refresh_every=0
        )
        W, X, _ = neumann(state, x, D, (order, tolerance, 0))
        assert (int(state[3]), int(state[4])) == (int(exact[3]), int(exact[4]))
        torch.testing.assert_close(X.double(), exact[0], rtol=0, atol=2e-6)
        expected = refine(2 * exact[0] - eye) * D.double()
        torch.testing.assert_close(W.double(), expected, rtol=0, atol=1e-5)
    assert (int(state[3]), int(state[4])) == (3, 2)


@pytest.mark.parametrize("size", [1e4, 1e6])
@pytest.mark.parametrize("n", [15, 33])
def test_large_entries_of_an_odd_matrix(n: int, size: float) -> None:
    """I + A has the condition of A there, and a step towards the orthogonal matrices is too few."""
    W, _, _ = cayley(size * entries(n), signs(n), n - 1)
    W = W.double()
    assert torch.linalg.matrix_norm(W.mT @ W - torch.eye(n)) <= 1e-6 * n**0.5


# with products by the inverse of two pivots at once, W would be off by 4e-3, 2e-4 and 0.3
@pytest.mark.parametrize(("n", "seed"), [(15, 224), (15, 38), (33, 127)])
def test_entries_that_differ_widely(n: int, seed: int) -> None:
    torch.manual_seed(seed)
    normal, other = (torch.randn(diagonal_entries(n, 1, n - 1)) for _ in range(2))
    x, D, eye = (5 * normal * torch.exp(2 * other)).float(), torch.ones(n).float(), torch.eye(n)
    W, _, _ = cayley(x, D, n - 1)
    exact = 2 * torch.linalg.inv(eye + skew_symmetric(x.double(), n)) - eye
    assert torch.linalg.matrix_norm(W.double() - exact) <= 1e-5 * n**0.5


@pytest.mark.parametrize("n", [15, 33])
def test_what_is_no_number_stays_so(n: int) -> None:
    x = entries(n)
    x[0] = torch.nan
    assert cayley(x, signs(n), n - 1)[0].isnan().all()


def test_blocks_of_a_network() -> None:
    """As many as have enough columns, and as there is room for clusters of all networks."""
    found = [_blocks(0, n, 1) for n in (1, 15, 16, 31, 32, 63, 64, 170)]
    assert found == [1, 1, 2, 2, 4, 4, 8, 8]
    found = [_blocks(0, 170, networks) for networks in (15, 16, 30, 31, 66, 67)]
    assert found == [8, 4, 4, 2, 2, 1]


def test_one_block_where_there_are_no_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "chip", lambda _: Chip(108, 166912, 1))
    assert _blocks(0, 140, 1) == 1
    n, x, D = 33, entries(33), signs(33)
    exact = torch.linalg.inv(torch.eye(n) + skew_symmetric(x.double(), n))
    torch.testing.assert_close(cayley(x, D, n - 1)[1].double(), exact, rtol=0, atol=1e-6)


def test_fewer_blocks_where_clusters_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Kernel, "resident_clusters", lambda kernel: int(kernel.blocks <= 2))
    assert _blocks(0, 140, 1) == 2
