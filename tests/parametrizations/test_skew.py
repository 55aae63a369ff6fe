import pytest
import torch

from cayley.parametrizations import Skew, SkewHermitian, skew_hermitian, skew_symmetric
from cayley.parametrizations.skew import diagonals


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


def test_refusals_say_what_is_wrong() -> None:
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
