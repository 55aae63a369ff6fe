"""Every orthogonal (unitary) matrix has a scaled Cayley transform with entries of at most 1."""

import math

import pytest
import torch
from torch import Tensor

from cayley.parametrizations import scaled_cayley, small_cayley
from cayley.parametrizations.signature import _cayley, _negate, _regular_signature, _turn

DTYPES = [torch.float64, torch.complex128]


def haar(n: int, dtype: torch.dtype) -> Tensor:
    Q, R = torch.linalg.qr(torch.randn(n, n, dtype=dtype))
    return Q * (R.diagonal() / R.diagonal().abs())


def rotation(angle: float, n: int) -> Tensor:
    t = torch.full((), angle)
    block = torch.stack((t.cos(), -t.sin(), t.sin(), t.cos())).view(2, 2)
    return torch.block_diag(*[block] * (n // 2))


def adversaries(n: int) -> dict[str, Tensor]:
    eye = torch.eye(n)
    u = torch.randn(n, 1)
    v = torch.ones(n, 1)
    return {
        "identity": eye,
        "minus identity": -eye,
        "shift": eye.roll(1, 0),
        "permutation": eye[torch.randperm(n)],
        "swap": eye[torch.arange(n) ^ 1],
        "reflection": eye - 2 * u @ u.T / (u.T @ u),
        "constant reflection": eye - 2 * v @ v.T / n,
        "half turn": rotation(torch.pi, n),
        "nearly half turn": rotation(torch.pi - 1e-9, n),
        "nearly identity": rotation(1e-9, n),
        "quarter turn": rotation(torch.pi / 2, n),
        "signs": (torch.arange(n) % 3 - 1.0).sign().where(torch.arange(n) % 3 != 1, 1.0).diag(),
    }


def check(W: Tensor) -> None:
    A, D = small_cayley(W)
    n = len(W)
    assert A.abs().max() <= 1
    torch.testing.assert_close(A, -A.mH, rtol=0, atol=0)
    torch.testing.assert_close(D.abs(), torch.ones(n))
    if not W.is_complex():
        assert set(D.tolist()) <= {-1.0, 1.0}
    error = torch.linalg.matrix_norm(scaled_cayley(A, D) - W)
    assert error <= 1e-12 * n


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 3, 7, 32, 101, 256])
def test_haar_random_matrices(n: int, dtype: torch.dtype) -> None:
    for _ in range(3 if n == 256 else 10):
        check(haar(n, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [2, 8, 64])
@pytest.mark.parametrize("name", adversaries(2))
def test_adversarial_matrices(n: int, name: str, dtype: torch.dtype) -> None:
    check(adversaries(n)[name].to(dtype))


def test_products_of_adversaries() -> None:
    cases = list(adversaries(10).values())
    for A in cases:
        for B in cases:
            check(A @ B)


def test_float32_is_worked_in_double() -> None:
    W = haar(40, torch.float64).float()
    A, D = small_cayley(W)
    assert A.dtype == D.dtype == torch.float32
    assert A.abs().max() <= 1
    torch.testing.assert_close(scaled_cayley(A, D), W, rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_pivots_are_the_transform_of_the_changed_signature(dtype: torch.dtype) -> None:
    W = haar(6, dtype)
    D = _regular_signature(W)
    A, flipped = _cayley(W, D), D.clone()
    flipped[[1, 4]] *= -1
    _negate(A, [1, 4])
    torch.testing.assert_close(A, _cayley(W, flipped))
    if dtype.is_complex:
        A, turned = _cayley(W, D), D.clone()
        turned[2] *= _turn(A, 2)
        torch.testing.assert_close(A, _cayley(W, turned))
        assert A[2, 2].abs() < 1e-14


def test_bound_is_sharp() -> None:
    """The quarter turn of the plane has the entry 1 whatever the signs."""
    A, _ = small_cayley(rotation(torch.pi / 2, 2))
    assert A.abs().max().item() == pytest.approx(1)


def test_without_signs_eigenvalues_near_minus_one_need_large_entries() -> None:
    """A rotation by θ is the transform of entries ± tan(θ/2); with signs at most 1 suffices."""
    c, s = -0.99999, math.sqrt(1 - 0.99999**2)
    a = math.sqrt((1 - c) / (1 + c))
    assert (round(s, 5), a) == (0.00447, pytest.approx(447.212, abs=1e-3))
    W = torch.tensor([[c, -s], [s, c]])
    A = torch.tensor([[0.0, a], [-a, 0.0]])
    torch.testing.assert_close(scaled_cayley(A, torch.ones(2)), W)
    small, D = small_cayley(W)
    assert small.abs().max() <= 1
    torch.testing.assert_close(scaled_cayley(small, D), W)
