import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal

from cayley.parametrizations import (
    MatrixExponential,
    Skew,
    StructuredMatrix,
    matrix_exponential,
    skew_symmetric,
)


def haar(n: int) -> Tensor:
    return torch.linalg.qr(torch.randn(n, n)).Q


def test_rotation_of_the_plane() -> None:
    t = torch.tensor(0.7)
    expected = torch.stack((t.cos(), t.sin(), -t.sin(), t.cos())).view(2, 2)
    torch.testing.assert_close(MatrixExponential(2)(t[None]), expected)


def test_is_the_function_of_the_eigenvalues() -> None:
    K, B = skew_symmetric(torch.randn(15), 6), haar(6)
    values, vectors = torch.linalg.eigh(1j * K)
    expected = B @ ((vectors * torch.exp(-1j * values)) @ vectors.mH).real
    torch.testing.assert_close(matrix_exponential(K, B), expected)


def test_agrees_with_torch() -> None:
    x = torch.randn(15)
    layer: Any = nn.Linear(6, 6, bias=False)
    orthogonal(layer, orthogonal_map="matrix_exp", use_trivialization=False)
    with torch.no_grad():
        # torch keeps the entries below the diagonal
        layer.parametrizations.weight.original.copy_(skew_symmetric(x, 6))
    torch.testing.assert_close(MatrixExponential(6)(x), layer.weight.detach())


@pytest.mark.parametrize("norm", [1.0, 30.0, 300.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_stays_orthogonal_when_the_norm_is_large(norm: float, dtype: torch.dtype) -> None:
    n = 128
    K = torch.randn(n, n)
    K = K - K.T
    K = (K * (norm / torch.linalg.matrix_norm(K, 2))).to(dtype)
    W = matrix_exponential(K, torch.eye(n, dtype=dtype))
    bound = {torch.float32: 1e-6, torch.float64: 1e-13}[dtype]
    assert MatrixExponential(n).defect(W) <= bound * n**0.5


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_sample_has_the_eigenvalues_of_the_angles(n: int) -> None:
    map = MatrixExponential(n)
    (K,) = map.sample()
    assert K.shape == (n * (n - 1) // 2,)
    angles = torch.linalg.eigvals(map(K)).angle().abs().sort().values
    t = K[: n - 1 : 2]
    assert ((t >= 0) & (t < math.pi / 2)).all()
    expected = torch.cat((t, t, torch.zeros(n % 2))).sort().values
    torch.testing.assert_close(angles, expected, atol=1e-7, rtol=0)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_right_inverse_takes_any_orthogonal_matrix(n: int) -> None:
    eye = torch.eye(n)
    flipped = haar(n)
    flipped[:, 0] *= -1
    for W in (eye, -eye, eye.flip(0), haar(n), flipped):
        map = MatrixExponential(n)
        K = map.right_inverse(W)
        assert not K.any()
        torch.testing.assert_close(map(K), W, atol=1e-14, rtol=0)


def test_rebase_keeps_the_matrix() -> None:
    matrix: Any = StructuredMatrix(MatrixExponential(5))
    with torch.no_grad():
        matrix.K.normal_()
        before = matrix()
        matrix.map.rebase_(matrix.K)
        assert matrix() is not before
        torch.testing.assert_close(matrix(), before, atol=1e-14, rtol=0)
    assert matrix.K.requires_grad
    assert not matrix.K.any()
    assert matrix.map.defect(matrix.map.B) < 1e-14


def test_gradient_at_the_base_is_riemannian() -> None:
    map, G = MatrixExponential(4), torch.randn(4, 4)
    B = haar(4)
    K = map.right_inverse(B).requires_grad_()
    (gradient,) = torch.autograd.grad((G * map(K)).sum(), K)
    torch.testing.assert_close(skew_symmetric(gradient, 4), B.T @ G - G.T @ B)


@pytest.mark.parametrize(
    ("n", "norm"), [(1, 0.0), (2, 0.0), (2, 1.0), (5, 1e-9), (8, 3.0), (31, 50.0)]
)
def test_closed_form_of_the_gradient(n: int, norm: float) -> None:
    map, G = MatrixExponential(n), torch.randn(n, n)
    map.B.copy_(haar(n))
    x = torch.randn(n * (n - 1) // 2)
    x = (
        x * norm / torch.linalg.matrix_norm(skew_symmetric(x, n), 2).clamp(min=1e-9)
    ).requires_grad_()
    W, pullback = map.with_pullback(x)
    expected = map.B @ torch.matrix_exp(skew_symmetric(x, n))
    torch.testing.assert_close(W, expected.detach(), atol=1e-13, rtol=0)
    (gradient,) = torch.autograd.grad(expected, x, G)
    for _ in range(2):
        torch.testing.assert_close(pullback(G)[0], gradient, atol=1e-12, rtol=1e-12)
    assert torch.equal(map(x.detach()), W)


def test_closed_form_is_right_in_float32() -> None:
    """Where that of autograd has lost a digit and more."""
    n = 200
    K = skew_symmetric(torch.randn(n * (n - 1) // 2), n)
    x = Skew(n).entries(3 * K / torch.linalg.matrix_norm(K, 2)).float()
    G = torch.randn(n, n).float()
    exact = x.double().requires_grad_()
    (expected,) = torch.autograd.grad(MatrixExponential(n)(exact), exact, G.double())
    (found,) = MatrixExponential(n).float().with_pullback(x)[1](G)
    assert (found - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize("n", [2, 10, 64])
@pytest.mark.parametrize("scale", [0.1, 0.4, 1.0, 12.0])
def test_blocks_are_right_in_float32(n: int, scale: float) -> None:
    """Those that a network begins with, and longer ones."""
    map = MatrixExponential(n)
    x = (scale * map.sample()[0]).float()
    expected = torch.matrix_exp(skew_symmetric(x.double(), n))
    W, _ = map.float().with_pullback(x)
    assert (W - expected).abs().max() <= 2e-7 * (1 + 4 * scale)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_numbers_that_are_none(value: float) -> None:
    W, pullback = MatrixExponential(4).with_pullback(torch.full((6,), value))
    assert W.isnan().any()
    assert not pullback(torch.randn(4, 4))[0].isfinite().all()


@pytest.mark.parametrize("size", [1e6, 1e20, 1e30])
def test_large_angles_give_orthogonal_matrices(size: float) -> None:
    map = MatrixExponential(65).float()
    W, pullback = map.with_pullback(size * torch.randn(65 * 32).float())
    assert map.defect(W) <= 1e-6 * 65**0.5
    assert pullback(torch.randn(65, 65).float())[0].isfinite().all()


def test_training_with_rebasing_reaches_the_target() -> None:
    target = torch.matrix_exp(skew_symmetric(torch.full((6,), 0.8), 4))
    matrix: Any = StructuredMatrix(MatrixExponential(4))
    optimizer = torch.optim.SGD(matrix.parameters(), lr=0.1)
    for step in range(300):
        loss = (matrix() - target).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            matrix.map.rebase_(matrix.K)
    torch.testing.assert_close(matrix(), target, atol=1e-6, rtol=0)


def test_base_is_saved_and_drawn_anew() -> None:
    map, twin = MatrixExponential(4), MatrixExponential(4)
    W = haar(4)
    K = map.right_inverse(W)
    twin.load_state_dict(map.state_dict())
    torch.testing.assert_close(twin(K), W)
    twin.sample()
    assert torch.equal(twin.B, torch.eye(4))


def test_half_precision_is_refused() -> None:
    with pytest.raises(TypeError, match="float32 or float64"):
        matrix_exponential(torch.zeros(3, 3, dtype=torch.float16), torch.eye(3))
