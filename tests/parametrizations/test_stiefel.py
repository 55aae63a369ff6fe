from typing import Any

import pytest
import torch

from cayley.parametrizations import StiefelPoint, StructuredMatrix


def test_free_tensor_is_the_matrix() -> None:
    matrix: Any = StructuredMatrix(StiefelPoint(4))
    assert matrix() is matrix.W
    assert matrix.W.is_contiguous()
    assert matrix.map.on_manifold


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 2, 5, 64])
def test_sample_is_unitary(n: int, dtype: torch.dtype) -> None:
    map = StiefelPoint(n)
    (W,) = map.sample(dtype=dtype)
    assert W.dtype == dtype.to_complex()
    assert map.defect(W) <= {torch.float32: 1e-6, torch.float64: 1e-13}[dtype] * n**0.5
    (other,) = map.sample(dtype=dtype)
    assert not torch.equal(W, other)


def test_right_inverse() -> None:
    map = StiefelPoint(3)
    (W,) = map.sample()
    assert torch.equal(map.right_inverse(W), W)
    real = torch.linalg.qr(torch.randn(3, 3)).Q
    X = map.right_inverse(real)
    assert X.dtype == torch.complex128
    assert torch.equal(X.real, real)
    with pytest.raises(ValueError, match="expected a unitary matrix"):
        map.right_inverse(1.1 * W)


def test_assignment_and_reset() -> None:
    matrix = StructuredMatrix(StiefelPoint(3), dtype=torch.float32)
    (W,) = StiefelPoint(3).sample()
    matrix.assign(W)
    assert matrix().dtype == torch.complex64
    torch.testing.assert_close(matrix(), W.to(torch.complex64))
    matrix.reset_parameters()
    assert not torch.equal(matrix(), W.to(torch.complex64))
    assert matrix.map.defect(matrix()) < 1e-6
