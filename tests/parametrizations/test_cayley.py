"""The real scaled Cayley transform against its plain formula and the theorem on its gradient."""

import pytest
import torch
from torch import Tensor

from cayley.kernels.cpu.cayley import LARGEST
from cayley.parametrizations import ScaledCayley, scaled_cayley, skew_symmetric
from cayley.parametrizations.formation import formed_under_transforms


def plain(A: Tensor, D: Tensor) -> Tensor:
    eye = torch.eye(len(A))
    return torch.linalg.solve(eye + A, eye - A) @ D.diag()


def skew_and_signs(n: int) -> tuple[Tensor, Tensor]:
    X = torch.randn(n, n)
    return X - X.T, torch.randint(2, (n,)).double() * 2 - 1


@pytest.mark.parametrize("n", [1, 2, 5, 20])
def test_is_the_plain_formula_with_its_gradients(n: int) -> None:
    A, D = skew_and_signs(n)
    G, H = torch.randn(n, n), torch.randn(n, n)
    results = []
    for transform in (scaled_cayley, plain):
        own = A.clone().requires_grad_()
        W = transform(own, D)
        (first,) = torch.autograd.grad(W, own, G, create_graph=True)
        (second,) = torch.autograd.grad(first, own, H)
        results.append((W, first, second))
    torch.testing.assert_close(results[0], results[1])


def test_gradient_is_that_of_the_theorem() -> None:
    """Q = (I+A)^{-T} G (D + W^T); the entries above the diagonal have Q^T − Q."""
    n = 9
    A, D = skew_and_signs(n)
    G = torch.randn(n, n)
    W = scaled_cayley(A, D)
    Q = torch.linalg.inv(torch.eye(n) + A).T @ G @ (D.diag() + W.T)
    map = ScaledCayley(n)
    map.D.copy_(D)
    x = map.skew.right_inverse(A).requires_grad_()
    (grad,) = torch.autograd.grad(map(x), x, G)
    gradient = Q.T - Q
    torch.testing.assert_close(skew_symmetric(grad, n), gradient)


def test_zero_gives_the_signs() -> None:
    D = torch.tensor([1.0, -1.0, 1.0])
    torch.testing.assert_close(scaled_cayley(torch.zeros(3, 3), D), D.diag())


def test_initial_angles_become_eigenvalues() -> None:
    map = ScaledCayley(6, negative_ones=0)
    (x,) = map.sample()
    t = 2 * x[:5:2].atan()
    assert ((t >= 0) & (t <= torch.pi / 2)).all()
    expected = torch.cat((t, -t)).sort().values
    eigenvalues = torch.linalg.eigvals(map(x))
    torch.testing.assert_close(eigenvalues.angle().sort().values, expected)
    torch.testing.assert_close(eigenvalues.abs(), torch.ones(6))


@pytest.mark.parametrize("signs", range(6))
def test_determinant_counts_the_signs(signs: int) -> None:
    map = ScaledCayley(5, negative_ones=signs)
    assert map(torch.randn(10)).det().item() == pytest.approx((-1) ** signs)


@pytest.mark.parametrize("n", [170, 512])
def test_float32_is_orthogonal_for_large_entries(n: int) -> None:
    X = 0.5 * torch.randn(n, n, dtype=torch.float32)
    W = scaled_cayley(X.triu(1) - X.triu(1).T, torch.ones(n, dtype=torch.float32)).double()
    assert torch.linalg.matrix_norm(W.T @ W - torch.eye(n)) <= 1e-6 * n**0.5


def test_half_precision_is_refused() -> None:
    with pytest.raises(TypeError, match=r"float32 or float64.*got torch.bfloat16"):
        scaled_cayley(torch.zeros(2, 2).bfloat16(), torch.ones(2).bfloat16())


def test_signs_on_another_device_are_refused() -> None:
    map = ScaledCayley(4)
    (A,) = map.sample()
    map.D = map.D.to("meta")
    for form in (map, map.with_pullback):
        with pytest.raises(RuntimeError, match="device"):
            form(A)


def test_nan_goes_through() -> None:
    assert scaled_cayley(torch.full((4, 4), torch.nan), torch.ones(4)).isnan().any()


def test_bandwidth_limits_the_free_entries() -> None:
    map = ScaledCayley(6, bandwidth=2)
    (x,) = map.sample()
    assert x.shape == (5 + 4,)
    A = map.skew(torch.ones_like(x))
    assert torch.equal(A != 0, (torch.ones(6, 6).tril(2).triu(-2) - torch.eye(6)) != 0)


@pytest.mark.parametrize("size", [1e4, 1e6])
@pytest.mark.parametrize("recorded", [True, False])
def test_large_entries_of_an_odd_matrix(size: float, recorded: bool) -> None:
    """Too large for the C code; the condition of I + A is that of A."""
    map = ScaledCayley(LARGEST + 1).float()
    A = (size * torch.randn(map.n * (map.n - 1) // 2)).float().requires_grad_(recorded)
    for W in (map(A), map.with_pullback(A)[0]):
        assert map.defect(W) <= 1e-6 * map.n**0.5


def test_signs_of_several_networks_have_no_gradient() -> None:
    A, D = torch.randn(3, 6), torch.ones(3, 4)

    def norm(A: Tensor, D: Tensor) -> Tensor:
        return formed_under_transforms(A, D, 4, None).square().sum()

    of_A, of_D = torch.func.vmap(torch.func.grad(norm, (0, 1)))(A, D)
    assert of_A.shape == A.shape
    torch.testing.assert_close(of_D, torch.zeros_like(D))
