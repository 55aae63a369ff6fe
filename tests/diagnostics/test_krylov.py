"""Lanczos against dense eigenvalues."""

import pytest
import torch
from torch import Tensor

from cayley.diagnostics.krylov import condition_number, lanczos


def symmetric(n: int) -> Tensor:
    H = torch.randn(n, n)
    return H + H.mT


def test_all_steps_find_all_eigenvalues() -> None:
    H = symmetric(30)
    found = lanczos(lambda v: H @ v, torch.randn(30))
    torch.testing.assert_close(found.values, torch.linalg.eigvalsh(H))
    assert found.residuals.max() < 1e-10


def test_few_steps_find_the_outer_ones_and_say_how_well() -> None:
    d = torch.cat((torch.linspace(0, 1, 198), torch.tensor([-5.0, 7.0])))
    found = lanczos(lambda v: d * v, torch.ones(200), 20)
    assert len(found.values) == 20
    torch.testing.assert_close(found.values[[0, -1]], torch.tensor([-5.0, 7.0]))
    distance = (found.values[:, None] - d).abs().min(1).values
    assert (distance <= found.residuals + 1e-12).all()


def test_with_a_metric_they_are_those_of_the_product() -> None:
    H, M = symmetric(12), symmetric(12)
    M = M @ M + torch.eye(12)
    found = lanczos(lambda v: H @ v, torch.randn(12), metric=lambda u: M @ u)
    expected = torch.linalg.eigvals(M @ H).real.sort().values
    torch.testing.assert_close(found.values, expected)


def test_ends_when_nothing_new_is_left() -> None:
    d = torch.tensor([1.0, 1.0, 1.0, 3.0])
    found = lanczos(lambda v: d * v, torch.ones(4))
    torch.testing.assert_close(found.values, torch.tensor([1.0, 3.0]))
    assert lanczos(torch.zeros_like, torch.ones(4)).values.tolist() == [0.0]
    with pytest.raises(ValueError, match="does not map to 0"):
        lanczos(lambda v: v, torch.zeros(4))
    with pytest.raises(ValueError, match="finite"):
        lanczos(lambda v: v * torch.nan, torch.ones(4))


def test_condition_of_known_eigenvalues() -> None:
    values = torch.tensor([-10.0, 0.0, 1e-20, 2.0])
    assert condition_number(values, floor=1e-12) == 5
    torch.testing.assert_close(condition_number(values), torch.tensor(1e21))
