"""One step of following an eigenpair, against full decompositions."""

import math

import pytest
import torch
from torch import Tensor

from cayley.parametrizations.eigenvalue.subspace import candidate
from cayley.parametrizations.eigenvalue.tracking import Track, project, stands_alone, track

S, K = 100, 32
REAL = torch.tensor([[-1.1]])
PAIR = torch.tensor([[0.7, -0.9], [0.9, 0.7]])
leading = pytest.mark.parametrize("leading", [REAL, PAIR], ids=["real", "pair"])


def matrix(leading: Tensor) -> Tensor:
    """Eigenvalues of at most 0.9 in modulus, and the given ones, in general position."""
    T = torch.randn(S, S)
    T = 0.9 * T / torch.linalg.eigvals(T).abs().max()
    k = len(leading)
    T[:k, k:] = 0
    T[:k, :k] = leading
    P = torch.eye(S) + 0.3 * torch.randn(S, S) / S**0.5
    return P @ T @ torch.linalg.inv(P)


def start(T: Tensor) -> tuple[Tensor, Tensor, float]:
    """Columns that span the K largest eigenvalues, those of the leading one in these, and ρ."""
    columns, lead, rho = [], [], 0.0
    for A in (T, T.mT):
        theta, E = torch.linalg.eig(A)
        order = (theta.abs() + 1e-9 * theta.imag.sign()).argsort(descending=True)
        theta, E = theta[order], E[:, order]
        X = torch.linalg.qr(torch.where(theta.imag < 0, E.imag, E.real)[:, :K]).Q
        columns.append(X)
        lead.append(torch.stack((E[:, 0].real @ X, E[:, 0].imag @ X)))
        rho = float(theta[0].abs())
    return torch.stack(columns), torch.stack(lead), rho


def step(T: Tensor, change: float, terms: int = 8) -> tuple[Tensor, Track]:
    """A in units of ρ, and a step from the eigenvectors of a matrix nearby."""
    columns, lead, rho = start(T + change * torch.randn(S, S) / S**0.5)
    A = torch.stack((T, T.mT)) / rho
    return A[0], track(A, columns, lead, 3, terms)


@leading
def test_finds_the_eigenpair_next_to_the_last_one(leading: Tensor) -> None:
    A, found = step(matrix(leading.double()), 1e-3)
    u, w = torch.complex(found.u[:, 0], found.u[:, 1])
    torch.testing.assert_close(found.Au[0], found.u[0] @ A.mT)
    torch.testing.assert_close(found.Au[1], found.u[1] @ A)
    theta, E = torch.linalg.eig(A)
    j = int((theta.abs() + 1e-9 * theta.imag.sign()).argmax())
    quotient = (w @ (A.to(u.dtype) @ u)) / (w @ u)
    assert abs(complex(quotient - theta[j])) < 1e-9
    left = torch.linalg.inv(E)[j]
    for x, exact in ((u, E[:, j]), (w, left)):
        cosine = torch.vdot(x, exact).abs() / x.norm() / exact.norm()
        assert 1 - cosine < 1e-8


@leading
def test_terms_of_the_series_shorten_the_residual(leading: Tensor) -> None:
    T = matrix(leading.double())
    residuals = []
    for terms in (1, 6, 12):
        torch.manual_seed(1)
        A, found = step(T, 1e-3, terms)
        u, w = torch.complex(found.u[:, 0], found.u[:, 1])
        A = A.to(u.dtype)
        theta = (w @ A @ u) / (w @ u)
        residuals.append(float((A @ u - theta * u).norm() / u.norm()))
    assert residuals[1] < 0.4 * residuals[0]
    assert residuals[2] < 0.4 * residuals[1]


@leading
def test_columns_of_the_next_step_hold_the_vectors(leading: Tensor) -> None:
    _, found = step(matrix(leading.double()), 1e-2)
    lead = found.small.rows @ found.small.factor
    torch.testing.assert_close(lead @ found.columns.mT, found.u)
    for X in found.columns:
        assert torch.linalg.cond(X) < 2


def test_a_real_eigenvalue_stays_real() -> None:
    _, found = step(matrix(REAL.double()), 1e-2)
    assert found.u[:, 1].norm() < 1e-15 * found.u[:, 0].norm()


def test_an_unchanged_matrix_is_no_singular_case() -> None:
    _, found = step(matrix(PAIR.double()), 0.0)
    assert found.u.isfinite().all()
    assert float(found.residual.norm() / found.u.norm()) < 1e-9


def test_dependent_columns_are_not_sound() -> None:
    T = matrix(PAIR.double())
    columns, lead, rho = start(T)
    columns[0, :, -1] = 0
    found = track(torch.stack((T, T.mT)) / rho, columns, lead, 3, 4)
    assert found.small.sound.tolist() == [0, 1]
    assert candidate(project(found.gram), 1e-7) is None
    assert not stands_alone(found.gram, 1 + 0j)


def test_projection() -> None:
    """In orthonormal bases that span the same spaces."""
    A = matrix(PAIR.double())
    V, W = torch.randn(2, S, 6)
    Y = torch.cat((V, W, A @ V, A.mT @ W), 1)
    P = project(Y.mT @ Y)
    # the only basis that the Cholesky factor gives: that of Gram and Schmidt
    V, W = (Q * R.diagonal().sign() for Q, R in map(torch.linalg.qr, (V, W)))
    H, K_ = V.mT @ A @ V, W.mT @ A.mT @ W
    out, left_out = A @ V - V @ H, A.mT @ W - W @ K_
    expected = (H, out.mT @ out, K_, left_out.mT @ left_out, W.mT @ V, W.mT @ A @ V)
    for ours, theirs in zip(P, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("second", "alone"), [(0.3, True), (0.99, False)])
def test_stands_alone(second: float, alone: bool) -> None:
    values = torch.cat((torch.tensor([1.0, second]), torch.linspace(0.25, 0.01, 30)))
    A = values.diag()
    V = torch.eye(32)[:, :8] + 0.02 * torch.randn(32, 8)
    Y = torch.cat((V, V, A @ V, A.mT @ V), 1)
    assert stands_alone(Y.mT @ Y, 1 + 0j) == alone
    # what is outside of the space may be anything
    A[9:, 2] = 1.0 / math.sqrt(23)
    Y = torch.cat((V, V, A @ V, A.mT @ V), 1)
    assert not stands_alone(Y.mT @ Y, 1 + 0j)
