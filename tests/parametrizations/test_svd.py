import pytest
import torch
from torch import Tensor

from cayley.parametrizations import SpectralSVD, spectral_svd


def orthogonal(n: int) -> Tensor:
    return torch.linalg.qr(torch.randn(n, n)).Q


def test_is_the_decomposition() -> None:
    U, V, s = orthogonal(4), orthogonal(4), torch.randn(4)
    sigma = 1 + 0.3 * (2 * torch.sigmoid(s) - 1)
    torch.testing.assert_close(spectral_svd(U, V, s, 0.3), U @ torch.diag(sigma) @ V.T)


def test_module_takes_its_singular_vectors_from_the_reflections() -> None:
    map = SpectralSVD(6, reflections=2, margin=0.2)
    u, v, s = (*map.sample()[:2], torch.randn(6))
    W = map(u, v, s)
    torch.testing.assert_close(W, spectral_svd(map.left(u), map.right(v), s, 0.2))
    sigma = (1 + 0.2 * (s / 2).tanh()).sort(descending=True).values
    torch.testing.assert_close(torch.linalg.svdvals(W), sigma)


@pytest.mark.parametrize("margin", [0.0, 0.01, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_singular_values_stay_in_range_however_large_s_is(
    margin: float, dtype: torch.dtype
) -> None:
    n = 128
    map = SpectralSVD(n, margin=margin).to(dtype)
    u, v, s = map.sample(dtype=dtype)
    s = 1e4 * torch.randn_like(s)
    bound = {torch.float32: 1e-6, torch.float64: 1e-13}[dtype]
    assert map.defect(map(u, v, s)) <= bound * n**0.5


def test_number_of_free_entries() -> None:
    # 16 reflections of size 60 and less a side, and the singular values
    assert [len(X) for X in SpectralSVD(60, reflections=16).sample()] == [840, 840, 60]


def test_sample_is_orthogonal() -> None:
    map = SpectralSVD(5, margin=0.5)
    W = map(*map.sample())
    torch.testing.assert_close(W.T @ W, torch.eye(5))


def test_defect_is_the_norm_of_the_excess() -> None:
    map = SpectralSVD(4, margin=0.1)
    sigma = torch.tensor([1.1 + 0.03, 1.05, 0.95, 0.9 - 0.04])
    W = orthogonal(4) @ torch.diag(sigma) @ orthogonal(4)
    assert map.defect(W) == pytest.approx(0.05)
    assert map.defect(W * torch.nan).isnan()


def test_project_clips() -> None:
    map = SpectralSVD(4, margin=0.1)
    U, V = orthogonal(4), orthogonal(4)
    W = U @ torch.diag(torch.tensor([3.0, 1.05, 0.95, 0.1])) @ V
    clipped = U @ torch.diag(torch.tensor([1.1, 1.05, 0.95, 0.9])) @ V
    torch.testing.assert_close(map.project(W), clipped)
    torch.testing.assert_close(map(*map.right_inverse(map.project(W))), clipped)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "sigma", [[1.1, 1.1, 1.1], [0.9, 0.9, 0.9], [1.1, 1.0, 0.9], [1.0, 1.0, 1.0]]
)
def test_right_inverse_at_the_ends_of_the_interval(sigma: list[float], dtype: torch.dtype) -> None:
    map = SpectralSVD(3, margin=0.1).to(dtype)
    W = (orthogonal(3) @ torch.diag(torch.tensor(sigma)) @ orthogonal(3)).to(dtype)
    X = map.right_inverse(W)
    assert all(x.isfinite().all() and x.dtype == dtype for x in X)
    torch.testing.assert_close(map(*X), W, atol=20 * torch.finfo(dtype).eps, rtol=0)


@pytest.mark.parametrize("margin", [0.0, 0.01])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_right_inverse_of_orthogonal_matrices(n: int, margin: float) -> None:
    map = SpectralSVD(n, margin=margin)
    for W in (torch.eye(n), -torch.eye(n), torch.eye(n).flip(0), orthogonal(n)):
        torch.testing.assert_close(map(*map.right_inverse(W)), W, atol=1e-14, rtol=0)


def test_right_inverse_refuses() -> None:
    with pytest.raises(ValueError, match=r"\[0.99, 1.01\], got some outside by 0.02.*margin"):
        SpectralSVD(4).right_inverse(torch.diag(torch.tensor([1.03, 1.0, 1.0, 1.0])))
    with pytest.raises(ValueError, match="Use reflections=4"):
        SpectralSVD(4, reflections=3).right_inverse(torch.eye(4))


@pytest.mark.parametrize("margin", [-0.1, 1.0, float("nan")])
def test_wrong_margin(margin: float) -> None:
    with pytest.raises(ValueError, match=f"got {margin}"):
        SpectralSVD(4, margin=margin)


def test_wrong_reflections() -> None:
    with pytest.raises(ValueError, match="from 1 to n = 4, got 5"):
        SpectralSVD(4, reflections=5)


def test_repr() -> None:
    first = repr(SpectralSVD(5, reflections=2)).splitlines()
    assert first[1].strip() == "5, reflections=2, margin=0.01"
