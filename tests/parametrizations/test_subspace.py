"""Subspace iteration from a good start, and when it gives up."""

import math

import pytest
import torch
from torch import Tensor

from cayley.parametrizations.subspace import iterate, order_of, regular_factors

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


REAL = torch.tensor([[-1.1]])
PAIR = torch.tensor([[0.7, -0.9], [0.9, 0.7]])


@pytest.mark.parametrize("leading", [REAL, PAIR], ids=["real", "pair"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_finds_the_dominant_pair_from_a_random_start(leading: Tensor, dtype: torch.dtype) -> None:
    A = matrix(leading.double()).to(dtype)
    factors = []
    side, _ = iterate(A, torch.randn(S, K, dtype=dtype), factors)
    assert side is not None
    eigenvalue, u, X = side
    expected = torch.linalg.eigvals(leading.double())
    expected = expected[expected.imag >= 0][0]
    assert abs(complex(eigenvalue - expected)) < torch.finfo(dtype).eps ** 0.5
    residual = A.to(u.dtype) @ u - eigenvalue.to(u.dtype) * u
    assert torch.linalg.vector_norm(residual) < torch.finfo(dtype).eps ** 0.5
    torch.testing.assert_close(X.mT @ X, torch.eye(K, dtype=dtype))
    # the other side, with what this one has left
    side, _ = iterate(A.mT, torch.randn(S, K, dtype=dtype), factors)
    assert side is not None
    assert abs(complex(side[0] - expected)) < torch.finfo(dtype).eps ** 0.5


def test_gives_up_on_ties() -> None:
    """Two pairs of the same modulus, to the last digit that can be known."""
    angles = (0.3, 1.1)
    blocks = [
        torch.tensor([[math.cos(t), -math.sin(t)], [math.sin(t), math.cos(t)]]) for t in angles
    ]
    side, tied = iterate(matrix(torch.block_diag(*blocks)), torch.randn(S, K), [])
    assert side is None
    assert tied


def test_zero_has_no_answer() -> None:
    side, tied = iterate(torch.zeros(S, S), torch.randn(S, K), [])
    assert side is None
    assert not tied


def test_order() -> None:
    theta = torch.tensor([0.5, 1j, -1j, -2.0, 0.1 - 0.7j, 0.1 + 0.7j])
    expected = torch.tensor([-2.0, 1j, -1j, 0.1 + 0.7j, 0.1 - 0.7j, 0.5])
    assert torch.equal(theta[order_of(theta)], expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_factors_of_singular_matrices_find_the_kernel(dtype: torch.dtype) -> None:
    M = torch.tensor([[1.0, 2.0], [2.0, 4.0]], dtype=dtype)
    LU, pivots = regular_factors(M)
    y = torch.linalg.lu_solve(LU, pivots, torch.ones(2, 1, dtype=dtype))
    assert torch.linalg.vector_norm(M @ y / torch.linalg.vector_norm(y)) < 1e-14
    LU, pivots = regular_factors(torch.zeros(3, 3, dtype=dtype))
    assert torch.linalg.lu_solve(LU, pivots, torch.ones(3, 1, dtype=dtype)).isfinite().all()
