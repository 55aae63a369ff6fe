import math

import pytest
import torch
from gradients import grad_of

from cayley.parametrizations import UnitaryComposition, compose


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_is_the_product_of_the_eight_factors(n: int) -> None:
    map = UnitaryComposition(n)
    w, v = map.sample()
    D1, D2, D3 = (torch.diag(torch.exp(1j * angles)) for angles in w)
    R1, R2 = (
        torch.eye(n) - 2 * torch.outer(x, x.conj()) / x.abs().square().sum()
        for x in v[:, 0] + 1j * v[:, 1]
    )
    k = torch.arange(n)
    F = torch.exp(-2j * math.pi * torch.outer(k, k) / n) / n**0.5
    Pi = torch.eye(n, dtype=torch.complex128)[map.permutation]
    expected = D3 @ R2 @ F.mH @ D2 @ Pi @ R1 @ F @ D1
    torch.testing.assert_close(map(w, v), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_fast_application_is_the_matrix(dtype: torch.dtype) -> None:
    map = UnitaryComposition(7)
    w, v = map.sample()
    h = torch.randn(2, 3, 7, dtype=dtype)
    Wh = compose(h, w, v, map.permutation)
    torch.testing.assert_close(Wh, h.to(torch.complex128) @ map(w, v).mT)
    torch.testing.assert_close(Wh.norm(dim=-1), h.norm(dim=-1))
    torch.testing.assert_close(compose(h[0, 0], w, v, map.permutation), Wh[0, 0])


@pytest.mark.parametrize("n", [2, 64, 509])
def test_unitary_in_single_precision(n: int) -> None:
    map = UnitaryComposition(n)
    W = map(*map.sample(dtype=torch.float32))
    assert W.dtype == torch.complex64
    assert W.is_contiguous()
    assert map.defect(W) <= 1e-6 * n**0.5


def test_zero_reflection_vectors_drop_out() -> None:
    map = UnitaryComposition(5)
    w, v = map.sample()
    v.zero_().requires_grad_()
    W = map(w, v)
    D1, D2, D3 = (torch.exp(1j * angles) for angles in w)
    middle = torch.fft.fft((D1 * torch.eye(5)), norm="ortho")[:, map.permutation] * D2
    torch.testing.assert_close(W, (D3 * torch.fft.ifft(middle, norm="ortho")).mT)
    W.real.sum().backward()
    assert not grad_of(v).any()


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_length_of_a_reflection_vector_is_without_effect(scale: float) -> None:
    map = UnitaryComposition(5)
    w, v = map.sample(dtype=torch.float32)
    torch.testing.assert_close(map(w, v * scale), map(w, v))


@pytest.mark.parametrize("n", [2, 8, 10])
def test_almost_all_unitary_matrices_are_missed(n: int) -> None:
    """The theorem's proof: of rank below n², the derivative makes the image a null set (Sard).

    Wherever it is taken, under whatever permutation. That a reflection does not change with the
    length or the phase of its vector takes 2 of the 7n dimensions each.
    """
    for _ in range(3):
        map = UnitaryComposition(n)
        X = map.sample()
        assert sum(x.numel() for x in X) == 7 * n
        parts = torch.autograd.functional.jacobian(
            lambda w, v, map=map: torch.view_as_real(map(w, v)).flatten(), X
        )
        rank = int(torch.linalg.matrix_rank(torch.cat([J.flatten(1) for J in parts], 1)))
        assert rank <= min(7 * n - 4, n * n)
        assert (rank < n * n) == (n > 7)


def test_sample() -> None:
    n = 200
    map = UnitaryComposition(n)
    w, v = map.sample()
    # 7n numbers in all
    assert w.shape == (3, n)
    assert v.shape == (2, 2, n)
    assert 3.0 < w.abs().max() <= math.pi
    limit = math.sqrt(6 / (2 * n + 2))
    assert 0.95 * limit < v.abs().max() <= limit
    assert torch.equal(map.permutation.sort().values, torch.arange(n))
    before = map.permutation.clone()
    map.sample()
    assert not torch.equal(map.permutation, before)


def test_permutation_is_saved() -> None:
    map, twin = UnitaryComposition(9), UnitaryComposition(9)
    X = map.sample()
    twin.load_state_dict(map.state_dict())
    assert torch.equal(twin(*X), map(*X))
    assert map.to(torch.float32).permutation.dtype == torch.int64


def test_half_precision_is_refused() -> None:
    map = UnitaryComposition(4)
    with pytest.raises(TypeError, match="float32 or float64"):
        map(*map.sample(dtype=torch.bfloat16))
