"""What small bases show of the eigenvalues of a large matrix."""

import cmath
import math

import pytest
import torch
from eigenpairs import rotation
from torch import Tensor

from cayley.parametrizations.eigenvalue.ritz import (
    Candidate,
    Rival,
    candidate,
    factors,
    growth,
    order_of,
    ritz_pairs,
    ritz_problem,
    rival,
)


def inner_products(A: Tensor, V: Tensor, W: Tensor) -> Tensor:
    Y = torch.cat((V, W, A @ V, A.mT @ W), 1)
    return Y.mT @ Y


def test_ritz_problem_from_inner_products() -> None:
    """In orthonormal bases that span the same spaces."""
    A = torch.randn(100, 100) / 10
    V, W = torch.randn(2, 100, 6)
    gram = inner_products(A, V, W)
    P = ritz_problem(gram, factors(gram))
    # the only basis that the Cholesky factor gives: that of Gram and Schmidt
    V, W = (Q * R.diagonal().sign() for Q, R in map(torch.linalg.qr, (V, W)))
    H, K_ = V.mT @ A @ V, W.mT @ A.mT @ W
    out, left_out = A @ V - V @ H, A.mT @ W - W @ K_
    outer = out.mT @ out, left_out.mT @ left_out
    expected = (torch.stack((H, K_)), torch.stack(outer), W.mT @ V, W.mT @ A @ V)
    for ours, theirs in zip(P, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_dependent_columns_have_no_ritz_values() -> None:
    A, V = torch.randn(32, 32), torch.randn(32, 8)
    for gram in (torch.zeros(32, 32), inner_products(A, torch.zeros(32, 8), V)):
        assert ritz_pairs(ritz_problem(gram, factors(gram))) is None
    gram = inner_products(A, V, torch.zeros(32, 8))
    problem = ritz_problem(gram, factors(gram))
    pairs = ritz_pairs(problem)
    assert pairs is not None
    assert candidate(problem, pairs, 1e-7) is None


def test_growth_is_that_of_the_smaller_eigenvalues() -> None:
    A = torch.cat((torch.tensor([1.0, 1.0, 0.9, 0.8]), torch.linspace(0.2, 0.1, 28))).diag()
    V = torch.linalg.matrix_power(A, 4) @ torch.eye(32)[:, :4]
    assert growth(factors(inner_products(A, V, V))) == pytest.approx(0.9**4)


def look(A: Tensor, V: Tensor, theta: complex = 1 + 0j) -> Rival:
    """The others in the space of V, if an eigenvalue is followed."""
    gram = inner_products(A, V, V)
    pairs = ritz_pairs(ritz_problem(gram, factors(gram)))
    assert pairs is not None
    return rival(pairs, theta)


@pytest.mark.parametrize(("second", "alone"), [(0.3, True), (0.99, False)])
def test_the_nearest_rival(second: float, alone: bool) -> None:
    values = torch.cat((torch.tensor([1.0, second]), torch.linspace(0.25, 0.01, 30)))
    A = values.diag()
    V = torch.eye(32)[:, :8] + 0.02 * torch.randn(32, 8)
    found = look(A, V)
    assert found.modulus == pytest.approx(second, abs=2e-2)
    assert (found.reach < 1) == alone
    # what is outside of the space may be anything
    A[9:, 1] = 1.0 / math.sqrt(23)
    assert look(A, torch.eye(32)[:, :8]).reach == pytest.approx(second + 1)


def test_each_rival_has_its_own_residual() -> None:
    """One that is near is no reason for doubt if it is certain, nor one that is far if not."""
    A = torch.cat((torch.tensor([1.0, 0.7]), torch.linspace(0.25, 0.01, 30))).diag()
    V = torch.linalg.qr(torch.eye(32)[:, :8] + 0.01 * torch.randn(32, 8)).Q
    assert look(A, V).reach < 1
    A[9:, 5] = 0.5 / math.sqrt(23)
    assert look(A, V).reach < 1
    A[9:, 1] = 0.5 / math.sqrt(23)
    assert look(A, V).reach > 1


def test_a_real_eigenvalue_next_to_a_pair_has_a_rival() -> None:
    """Two real eigenvalues may have become a pair."""
    A = torch.block_diag(rotation(1.0, 0.01), torch.linspace(0.25, 0.01, 30).diag())
    V = torch.eye(32)[:, :8]
    assert look(A, V).modulus == pytest.approx(1)
    assert look(A, V, cmath.rect(1.0, 0.01)).modulus == pytest.approx(0.25)


def found_in(A: Tensor, V: Tensor, W: Tensor) -> Candidate:
    gram = inner_products(A, V, W)
    problem = ritz_problem(gram, factors(gram))
    pairs = ritz_pairs(problem)
    assert pairs is not None
    found = candidate(problem, pairs, 1e-7)
    assert found is not None
    return found


def test_the_largest_one_in_bases_of_eigenvectors() -> None:
    A = torch.block_diag(torch.tensor([[0.8]]), rotation(0.9, 0.3), rotation(1.1, 0.7))
    A = torch.block_diag(A, torch.linspace(0.7, 0.1, 27).diag())
    P = torch.eye(32) + 0.1 * torch.randn(32, 32)
    inverse = torch.linalg.inv(P)
    A, V, W = P @ A @ inverse, P[:, :6], inverse.mT[:, :6]
    found = found_in(A, V, W)
    assert abs(found.eigenvalue - cmath.rect(1.1, 0.7)) < 1e-12
    assert found.ratio == pytest.approx(0.9 / 1.1)
    assert found.residual < 1e-6
    assert found.bound < 1e-12
    assert not found.tied
    assert not found.blurred
    for X, x, B in ((V, found.x, A), (W, found.z, A.mT)):
        # in the basis that the Cholesky factor gives
        Q, R = torch.linalg.qr(X)
        u = (Q * R.diagonal().sign()).to(x.dtype) @ x
        assert torch.linalg.vector_norm(B.to(x.dtype) @ u - found.eigenvalue * u) < 1e-12
        assert torch.linalg.vector_norm(u).item() == pytest.approx(1)


def test_those_of_the_same_modulus_tie() -> None:
    A = torch.block_diag(
        rotation(1.0, 0.3), rotation(1.0, 0.7), torch.linspace(0.7, 0.1, 28).diag()
    )
    V = torch.eye(32)[:, :8]
    assert found_in(A, V, V).tied


def test_order() -> None:
    theta = torch.tensor([0.5, 1j, -1j, -2.0, 0.1 - 0.7j, 0.1 + 0.7j])
    expected = torch.tensor([-2.0, 1j, -1j, 0.1 + 0.7j, 0.1 - 0.7j, 0.5])
    assert torch.equal(theta[order_of(theta)], expected)
