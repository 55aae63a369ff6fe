import pytest
import torch
from torch.autograd import forward_ad

from cayley.parametrizations import polar, refine


def test_polar_says_what_it_takes() -> None:
    with pytest.raises(ValueError, match=r"expected a square matrix, \(n, n\), got \(3, 4\)"):
        polar(torch.zeros(3, 4))
    with pytest.raises(TypeError, match=r"got torch.float16: call W.float\(\)"):
        polar(torch.eye(3).half())


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
@pytest.mark.parametrize("size", [1e-12, 1e-9, 1e-3, 1.0, 1e3])
def test_refine_finds_the_polar_factor(dtype: torch.dtype, size: float) -> None:
    Q = torch.linalg.qr(torch.randn(8, 8, dtype=dtype))[0]
    W = Q + size * torch.randn(8, 8, dtype=dtype)
    torch.testing.assert_close(refine(W), polar(W), rtol=0, atol=1e-13)


def test_refine_is_one_step_where_nobody_can_look() -> None:
    W = torch.eye(4) + 1e-3 * torch.randn(4, 4)
    expected = W + 0.5 * W @ (torch.eye(4) - W.mT @ W)
    compiled = torch.compile(refine, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(W), expected)


@pytest.mark.parametrize("scale", [1.0, 1.5])
def test_refine_is_the_identity_for_gradients(scale: float) -> None:
    W = (torch.eye(4) * scale).requires_grad_()
    G = torch.randn(4, 4)
    torch.testing.assert_close(torch.autograd.grad(refine(W), W, G)[0], G)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_refine_does_not_hide_what_is_no_number(value: float) -> None:
    W = torch.eye(4)
    W[0, 0] = value
    assert not refine(W).isfinite().all()


@pytest.mark.parametrize("scale", [1.0, 1.5])
def test_refine_is_the_identity_for_forward_derivatives(scale: float) -> None:
    tangent = torch.randn(4, 4)
    with forward_ad.dual_level():
        W = forward_ad.make_dual(torch.eye(4) * scale, tangent)
        found = forward_ad.unpack_dual(refine(W)).tangent
    torch.testing.assert_close(found, tangent)
