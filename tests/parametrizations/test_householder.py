import pytest
import torch
from torch import Tensor

from cayley.parametrizations import HouseholderProduct, householder_product


def reflection(u: Tensor) -> Tensor:
    return torch.eye(len(u)) - 2 * torch.outer(u, u) / (u @ u)


def haar(n: int) -> Tensor:
    Q, R = torch.linalg.qr(torch.randn(n, n))
    return Q * R.diagonal().sign()


@pytest.mark.parametrize(("n", "K"), [(1, 1), (4, 0), (5, 1), (5, 3), (5, 5), (3, 7)])
def test_is_the_product_of_the_reflections(n: int, K: int) -> None:
    U = torch.randn(n, K)
    expected = torch.eye(n)
    for u in U.T:
        expected = expected @ reflection(u)
    torch.testing.assert_close(householder_product(U), expected)


def test_agrees_with_lapack() -> None:
    map = HouseholderProduct(7, reflections=4)
    (u,) = map.sample()
    U = torch.zeros(7, 4)
    U[tuple(torch.tril_indices(7, 4))] = u
    V = U / U.diagonal()
    tau = 2 / (V * V).sum(0)
    torch.testing.assert_close(map(u)[:, :4], torch.linalg.householder_product(V, tau))


@pytest.mark.parametrize(("n", "l"), [(1, 1), (6, 1), (6, 3), (6, 6), (128, 16), (256, 32)])
def test_number_of_free_entries(n: int, l: int) -> None:  # noqa: E741
    (u,) = HouseholderProduct(n, reflections=l).sample()
    assert len(u) == sum(range(n - l + 1, n + 1))


@pytest.mark.parametrize("l", [1, 2, 3, 4, 5])
def test_determinant_counts_the_reflections(l: int) -> None:  # noqa: E741
    map = HouseholderProduct(5, reflections=l)
    assert torch.det(map(*map.sample())) == pytest.approx((-1) ** l)


def test_last_reflection_has_no_freedom() -> None:
    map = HouseholderProduct(3)
    (u,) = map.sample()
    other = u.clone()
    other[-1] = -7 * u[-1]
    torch.testing.assert_close(map(u), map(other))


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_length_of_a_vector_is_without_effect(scale: float) -> None:
    U = torch.randn(6, 4, dtype=torch.float32)
    torch.testing.assert_close(householder_product(U * scale), householder_product(U))


def test_zero_vector_drops_out() -> None:
    U = torch.randn(5, 3)
    U[:, 1] = 0
    U.requires_grad_()
    W = householder_product(U)
    torch.testing.assert_close(W, householder_product(U[:, [0, 2]]))
    (gradient,) = torch.autograd.grad((W * torch.randn(5, 5)).sum(), U, create_graph=True)
    assert (gradient[:, 1] == 0).all()
    assert gradient[:, 0].abs().min() > 0
    (second,) = torch.autograd.grad(gradient.square().sum(), U)
    assert second.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [1e-2, 1e6])
def test_nearly_parallel_vectors_stay_orthogonal(dtype: torch.dtype, spread: float) -> None:
    n = 256
    U = torch.ones(n, n, dtype=dtype) + spread * torch.randn(n, n, dtype=dtype)
    bound = {torch.float32: 1e-6, torch.float64: 1e-13}[dtype]
    assert HouseholderProduct(n).defect(householder_product(U.tril())) <= bound * n**0.5


def turned(n: int, angle: float) -> Tensor:
    X = angle * torch.randn(n, n)
    return torch.matrix_exp(X - X.T)


def special(n: int) -> dict[str, Tensor]:
    """Orthogonal matrices for which the choice of a reflection is delicate."""
    eye = torch.eye(n)
    return {
        "identity": eye,
        "minus": -eye,
        "rounded": eye + 1e-16 * torch.randn(n, n),
        "hardly turned": turned(n, 1e-15),
        "slightly turned": turned(n, 1e-9),
        "signs": torch.diag(1.0 - 2.0 * (torch.arange(n) % 2)),
        "permutation": eye[torch.randperm(n)],
        "cycle": eye.roll(1, 0),
        "mirror": eye.flip(0),
        "reflection": reflection(torch.randn(n)),
        "nearly e_1": reflection(eye[0] + 1e-8 * torch.randn(n)),
        "haar": haar(n),
    }


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8])
def test_right_inverse_of_delicate_matrices(n: int) -> None:
    for name, W in special(n).items():
        map = HouseholderProduct(n)
        u = map.right_inverse(W)
        torch.testing.assert_close(map(u), W, atol=1e-14 * n, rtol=0, msg=name)
        assert (map.D.abs() == 1).all()


def test_right_inverse_in_single_precision() -> None:
    W = haar(40).float()
    map = HouseholderProduct(40).float()
    u = map.right_inverse(W)
    assert u.dtype == torch.float32
    torch.testing.assert_close(map(u), W, atol=2e-6, rtol=0)


def test_right_inverse_gives_the_vectors_the_length_of_a_sample() -> None:
    map = HouseholderProduct(6)
    U = torch.zeros(6, 6)
    U[tuple(torch.tril_indices(6, 6))] = map.right_inverse(turned(6, 1e-9))
    torch.testing.assert_close(U.norm(dim=0), torch.arange(6, 0, -1).double().sqrt())


def test_few_reflections_reach_some_matrices() -> None:
    map = HouseholderProduct(6, reflections=2)
    rotation = reflection(torch.randn(6)) @ reflection(torch.eye(6)[1] + torch.eye(6)[4])
    for W in (torch.eye(6), -torch.eye(6), rotation, torch.diag(torch.tensor([1.0, -1] * 3))):
        torch.testing.assert_close(map(map.right_inverse(W)), W)
    before = map.D.clone()
    with pytest.raises(ValueError, match="reflections=6 reaches every orthogonal matrix"):
        map.right_inverse(haar(6))
    assert torch.equal(map.D, before)


def test_signs_are_saved_and_drawn_anew() -> None:
    map, twin = HouseholderProduct(4), HouseholderProduct(4)
    u = map.right_inverse(torch.eye(4))
    twin.load_state_dict(map.state_dict())
    torch.testing.assert_close(twin(u), torch.eye(4))
    twin.sample()
    assert torch.equal(twin.D, torch.ones(4))


@pytest.mark.parametrize("reflections", [0, -1, 6])
def test_wrong_number_of_reflections(reflections: int) -> None:
    with pytest.raises(ValueError, match=f"from 1 to n = 5, got {reflections}"):
        HouseholderProduct(5, reflections=reflections)


def test_half_precision_is_refused() -> None:
    with pytest.raises(TypeError, match="float32 or float64"):
        householder_product(torch.randn(3, 2, dtype=torch.bfloat16))


def test_repr() -> None:
    assert repr(HouseholderProduct(5)) == "HouseholderProduct(5, reflections=5)"
