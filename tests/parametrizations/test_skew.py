import math

import pytest
import torch

from cayley.parametrizations import Skew, SkewHermitian, skew_hermitian, skew_symmetric
from cayley.parametrizations.skew import diagonals, initial_entries


def test_diagonals_list_the_entries_in_order() -> None:
    i, j = diagonals(4, 0, 3, torch.device("cpu"))
    expected = [(r, r + d) for d in range(4) for r in range(4 - d)]
    assert list(zip(i.tolist(), j.tolist(), strict=True)) == expected


@pytest.mark.parametrize("n", [1, 2, 5, 8])
@pytest.mark.parametrize("bandwidth", [None, 1, 3])
def test_numbers_of_free_entries(n: int, bandwidth: int | None) -> None:
    last = n - 1 if bandwidth is None else min(bandwidth, n - 1)
    above = sum(n - d for d in range(1, last + 1))
    (real,) = Skew(n, bandwidth=bandwidth).sample()
    (both,) = SkewHermitian(n, bandwidth=bandwidth).sample()
    assert real.shape == (above,)
    assert both.shape == (2 * above + n,)
    if bandwidth is None:
        assert above == n * (n - 1) // 2
        assert both.numel() == n**2


def test_every_free_entry_moves_its_own_pair() -> None:
    n = 4
    for k in range(6):
        A = skew_symmetric(torch.eye(6)[k], n)
        assert (A != 0).sum() == 2
        assert A.sum() == 0
        assert A.triu().sum() == 1
    for k in range(16):
        A = skew_hermitian(torch.eye(16)[k], n)
        torch.testing.assert_close(A, -A.mH)
        assert (A != 0).sum() == (1 if 6 <= k < 10 else 2)


def angles(init: str, n: int) -> torch.Tensor:
    """Those of the eigenvalues of (I + A)⁻¹ (I − A)."""
    A = skew_symmetric(initial_entries(init, n), n)
    eye = torch.eye(n)
    return torch.linalg.eigvals(torch.linalg.solve(eye + A, eye - A)).angle()


def test_initial_eigenvalues() -> None:
    """Uniform on an arc, dense on it, or all 1."""
    n = 401  # an odd one leaves a row without a block, and an eigenvalue 1
    half, whole = angles("blocks", n).abs(), angles("circle", n).abs()
    for found, end in ((half, torch.pi / 2), (whole, torch.pi)):
        assert found.min() < 1e-12
        assert 0.95 * end < found.max() <= end
        assert found.mean() == pytest.approx(end / 2, rel=0.1)
        assert (found < end / 4).double().mean() == pytest.approx(1 / 4, abs=0.05)
    assert not angles("zero", n).any()
    uniform = initial_entries("uniform", n)
    assert len(uniform) == n * (n - 1) // 2
    assert 0.99 < uniform.abs().max() * n**0.5 <= 1
    assert uniform.std() == pytest.approx((3 * n) ** -0.5, rel=0.01)
    # the largest singular value of a skew matrix of independent entries is near 2 σ √n
    assert angles("uniform", n).abs().max() == pytest.approx(2 * math.atan(2 / 3**0.5), rel=0.05)


@pytest.mark.parametrize("init", ["blocks", "circle", "uniform", "zero"])
@pytest.mark.parametrize("bandwidth", [None, 2])
def test_what_sample_draws(init: str, bandwidth: int | None) -> None:
    for n in (1, 2, 5):
        torch.manual_seed(n)
        (x,) = Skew(n, bandwidth=bandwidth, init=init).sample(dtype=torch.float32)
        torch.manual_seed(n)
        expected = initial_entries(init, n, bandwidth, dtype=torch.float32)
        assert torch.equal(x, expected)
        torch.manual_seed(n)
        (z,) = SkewHermitian(n, bandwidth=bandwidth, init=init).sample(dtype=torch.float32)
        assert torch.equal(z[: len(x)], expected)
        assert not z[len(x) :].any()
    assert (f"init={init!r}" in repr(Skew(4, init=init))) == (init != "blocks")


def test_refusals_say_what_is_wrong() -> None:
    with pytest.raises(ValueError, match=r"init to be one of \('blocks', .*got 'random'"):
        Skew(3, init="random")
    with pytest.raises(ValueError, match=r"skew matrix.*‖A \+ A\*‖"):
        Skew(3).right_inverse(torch.eye(3))
    with pytest.raises(ValueError, match="beyond 1 diagonals"):
        Skew(3, bandwidth=1).right_inverse(Skew(3)(torch.ones(3)))
    with pytest.raises(ValueError, match="bandwidth of at least 1, got 0"):
        Skew(3, bandwidth=0)
    with pytest.raises(ValueError, match=r"shape \(3, 3\), got \(2, 2\)"):
        Skew(3).right_inverse(torch.zeros(2, 2))
    with pytest.raises(TypeError, match=r"expected a real matrix, got torch\.complex128"):
        Skew(3).right_inverse(torch.zeros(3, 3, dtype=torch.complex128))


@pytest.mark.parametrize("bandwidth", [None, 2])
def test_projection_is_nearest(bandwidth: int | None) -> None:
    W = torch.randn(5, 5, dtype=torch.complex128)
    map = SkewHermitian(5, bandwidth=bandwidth)
    A = map.project(W)
    torch.testing.assert_close(map(map.right_inverse(A)), A)
    best = torch.linalg.matrix_norm(W - A)
    for _ in range(20):
        (x,) = map.sample()
        other = A + 0.01 * map(torch.randn_like(x))
        assert torch.linalg.matrix_norm(W - other) >= best
