"""Subspace iteration from a good start, and when it gives up."""

import math

import pytest
import torch
from eigenpairs import rotation
from torch import Tensor

from cayley.parametrizations.eigenvalue.subspace import follow, regular_factors, sharpen

S, K = 100, 16


def matrix(leading: Tensor) -> Tensor:
    """Eigenvalues of at most 0.8 in modulus, and the given ones, in general position."""
    T = torch.randn(S, S)
    T = 0.8 * T / torch.linalg.eigvals(T).abs().max()
    k = len(leading)
    T[:k, k:] = 0
    T[:k, :k] = leading
    P = torch.eye(S) + 0.3 * torch.randn(S, S) / S**0.5
    return P @ T @ torch.linalg.inv(P)


def start(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return torch.randn(S, K, dtype=dtype), torch.randn(S, K, dtype=dtype)


def residuals(A: Tensor, eigenvalue: complex, u: Tensor, v: Tensor) -> tuple[float, float]:
    A, u, v = A.to(torch.complex128), u.to(torch.complex128), v.to(torch.complex128)
    right, left = A @ u - eigenvalue * u, v.conj() @ A - eigenvalue * v.conj()
    return float(torch.linalg.vector_norm(right)), float(torch.linalg.vector_norm(left))


REAL = torch.tensor([[-1.1]])
PAIR = torch.tensor([[0.7, -0.9], [0.9, 0.7]])
leading = pytest.mark.parametrize("leading", [REAL, PAIR], ids=["real", "pair"])
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def expected(leading: Tensor) -> complex:
    theta = torch.linalg.eigvals(leading.double())
    return complex(theta[theta.imag >= 0][0])


@leading
@dtypes
@pytest.mark.parametrize("lax", [False, True])
def test_finds_the_dominant_pair_from_a_random_start(
    leading: Tensor, dtype: torch.dtype, lax: bool
) -> None:
    """Its modulus is above 1, so that lax does not matter."""
    A, eps = matrix(leading.double()).to(dtype), torch.finfo(dtype).eps
    pair, V, W, _ = follow(A, *start(dtype), eps=eps, lax=lax)
    assert pair is not None
    assert abs(pair.eigenvalue - expected(leading)) < (1e-6 if dtype == torch.float32 else 1e-12)
    exact = residuals(A, pair.eigenvalue, pair.u, pair.v)
    assert max(exact) < eps**0.5
    assert (pair.r_u, pair.r_v) == pytest.approx(exact, rel=1e-3, abs=8 * eps)
    assert pair.c == pytest.approx(abs(complex(torch.vdot(pair.v, pair.u))), rel=1e-5)
    for X, u in ((V, pair.u), (W, pair.v)):
        assert torch.linalg.matrix_rank(X) == X.shape[1] == K
        # the next call starts from the answer
        rest = u - X.to(u.dtype) @ (torch.linalg.pinv(X).to(u.dtype) @ u)
        assert torch.linalg.vector_norm(rest) < 1e3 * eps


@dtypes
@pytest.mark.parametrize("gap", [0.1, 0.003])
def test_lax_is_right_in_the_eigenvalue(dtype: torch.dtype, gap: float) -> None:
    """Pairs of almost the same modulus below 1: the first one is found, to 1e-6."""
    blocks = [rotation(0.99 - gap * j, 0.3 + 0.4 * j) for j in range(4)]
    A = matrix(torch.block_diag(*blocks)).to(dtype)
    V, W = start(dtype)
    for _ in range(3):
        pair, V, W, _ = follow(A, V, W, eps=torch.finfo(dtype).eps, lax=True)
        assert pair is not None
        exact = torch.linalg.eigvals(A.double()).abs().max().item()
        assert abs(pair.eigenvalue) == pytest.approx(exact, rel=1e-6)
        assert pair.eigenvalue.imag > 0


@dtypes
def test_slow_products_end_in_good_vectors(dtype: torch.dtype) -> None:
    """No gap at all behind the first pair; the start is near."""
    moduli, angles = torch.linspace(1.05, 0.55, S // 2), torch.rand(S // 2) * math.pi
    blocks = [rotation(a, b) for a, b in zip(moduli.tolist(), angles.tolist(), strict=True)]
    P = torch.eye(S) + 0.3 * torch.randn(S, S) / S**0.5
    inverse = torch.linalg.inv(P)
    A, eps = (P @ torch.block_diag(*blocks) @ inverse).to(dtype), torch.finfo(dtype).eps
    V, W = (X[:, :K] + 1e-3 * torch.randn(S, K) for X in (P, inverse.mT))
    pair, *_ = follow(A, V.to(dtype), W.to(dtype), eps=eps, lax=False)
    assert pair is not None
    assert abs(pair.eigenvalue) == pytest.approx(1.05, rel=max(1e-12, 4 * eps))
    assert max(residuals(A, pair.eigenvalue, pair.u, pair.v)) < eps**0.5


@dtypes
@pytest.mark.parametrize("low", [0.8, 0.9])
def test_a_crowd_is_separated_by_powers(dtype: torch.dtype, low: float) -> None:
    """All moduli within 20 or 10 %, and a start that is not near: hundreds of products."""
    moduli, angles = torch.linspace(1.05, 1.05 * low, S // 2), torch.rand(S // 2) * math.pi
    blocks = [rotation(a, b) for a, b in zip(moduli.tolist(), angles.tolist(), strict=True)]
    P = torch.eye(S) + 0.3 * torch.randn(S, S) / S**0.5
    inverse = torch.linalg.inv(P)
    A, eps = (P @ torch.block_diag(*blocks) @ inverse).to(dtype), torch.finfo(dtype).eps
    V, W = (X[:, :K] + 0.3 * torch.randn(S, K) / S**0.5 for X in (P, inverse.mT))
    pair, *_ = follow(A, V.to(dtype), W.to(dtype), eps=eps, lax=False)
    assert pair is not None
    assert abs(pair.eigenvalue) == pytest.approx(1.05, rel=max(1e-12, 8 * eps))
    assert max(residuals(A, pair.eigenvalue, pair.u, pair.v)) < eps**0.5


def test_gives_up_on_ties() -> None:
    """Two pairs of the same modulus, to the last digit that can be known."""
    A = matrix(torch.block_diag(rotation(1.0, 0.3), rotation(1.0, 1.1)))
    pair, _, _, tied = follow(A, *start(), eps=torch.finfo(A.dtype).eps, lax=False)
    assert pair is None
    assert tied


@pytest.mark.parametrize("lax", [False, True])
def test_what_only_one_side_knows_is_no_answer_but_a_doubt(lax: bool) -> None:
    """The left start has no part in the largest eigenvalue, and no product gives it one.

    The right vector of that eigenvalue is next to that of a smaller one, which both sides know.
    """
    theta = torch.cat((torch.tensor([0.9, 0.8, 0.95]), torch.linspace(0.6, 0.1, S - 3)))
    P = torch.eye(S)
    P[1, 2], P[2, 2] = 0.8, 0.6
    left = torch.linalg.inv(P).mT
    A = P @ theta.diag() @ left.mT
    known = [0, 1, *range(3, K + 1)]
    V = torch.cat((P[:, known[:-1]], P[:, 2:3]), 1)
    V += 1e-2 * P[:, K:] @ torch.randn(S - K, K)
    pair, _, _, _ = follow(A, V, left[:, known], eps=1e-15, lax=lax)
    assert pair is None


def test_zero_has_no_answer() -> None:
    pair, _, _, tied = follow(torch.zeros(S, S), *start(), eps=1e-15, lax=False)
    assert pair is None
    assert not tied


@leading
@pytest.mark.parametrize("off", [0.0, 1e-12, 1e-5])
def test_inverse_iteration(leading: Tensor, off: float) -> None:
    """From any start, and a shift that is more or less right."""
    A, value = matrix(leading), expected(leading)
    pair = sharpen(A, value * (1 + off), torch.randn(S), torch.randn(S))
    assert abs(pair.eigenvalue - value) < 1e-12
    assert max(residuals(A, pair.eigenvalue, pair.u, pair.v)) < 1e-9
    assert torch.linalg.vector_norm(pair.u).item() == pytest.approx(1)
    assert torch.linalg.vector_norm(pair.v).item() == pytest.approx(1)


def test_factors_of_singular_matrices_find_the_kernel() -> None:
    M = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
    LU, pivots = regular_factors(M)
    y = torch.linalg.lu_solve(LU, pivots, torch.ones(2, 1))
    assert torch.linalg.vector_norm(M @ y / torch.linalg.vector_norm(y)) < 1e-14
    LU, pivots = regular_factors(torch.zeros(3, 3))
    assert torch.linalg.lu_solve(LU, pivots, torch.ones(3, 1)).isfinite().all()
