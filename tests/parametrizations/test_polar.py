import pytest
import torch

from cayley.parametrizations import polar, refine


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_polar_is_the_nearest_unitary_matrix(dtype: torch.dtype) -> None:
    W = torch.randn(6, 6, dtype=dtype)
    U = polar(W)
    torch.testing.assert_close(U.mH @ U, torch.eye(6, dtype=dtype))
    best = torch.linalg.matrix_norm(W - U)
    for _ in range(20):
        X = 0.1 * torch.randn(6, 6, dtype=dtype)
        other = U @ torch.linalg.matrix_exp(X - X.mH)
        assert torch.linalg.matrix_norm(W - other) > best


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_refine_squares_the_defect(dtype: torch.dtype) -> None:
    Q = torch.linalg.qr(torch.randn(8, 8, dtype=dtype))[0]
    E = torch.randn(8, 8, dtype=dtype)
    defects = []
    for size in (1e-3, 1e-4):
        W = refine(Q + size * E)
        defects.append(torch.linalg.matrix_norm(W.mH @ W - torch.eye(8)))
    assert defects[0] / defects[1] == pytest.approx(100, rel=0.1)


def test_refine_is_the_identity_for_gradients() -> None:
    W = torch.eye(4).requires_grad_()
    G = torch.randn(4, 4)
    torch.testing.assert_close(torch.autograd.grad(refine(W), W, G)[0], G)
