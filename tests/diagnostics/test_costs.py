import pytest
import torch

from cayley.diagnostics.costs import formation_seconds, neumann_errors
from cayley.parametrizations import MAPS, HouseholderProduct, Skew


def skew_path(steps: int, size: float, n: int = 10) -> torch.Tensor:
    skew = Skew(n)
    A, direction = skew.sample()[0], torch.randn(n * (n - 1) // 2)
    return torch.stack([skew(A + size * t * direction) for t in range(steps + 1)])


def test_every_map_has_a_cost() -> None:
    seconds = formation_seconds(sizes=[4, 8], repeat=1)
    assert seconds.shape == (len(MAPS), 2)
    assert (seconds > 0).all()
    forward = formation_seconds(
        {"few": lambda n: HouseholderProduct(n, reflections=2)}, [4], backward=False, repeat=1
    )
    assert forward.shape == (1, 1)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_halving_the_step_divides_the_error_by_two_to_the_order_and_one(order: int) -> None:
    torch.manual_seed(0)
    large = neumann_errors(skew_path(1, 1e-3), [order], repeat=1).errors[0, 0]
    torch.manual_seed(0)
    small = neumann_errors(skew_path(1, 5e-4), [order], repeat=1).errors[0, 0]
    torch.testing.assert_close(large / small, torch.tensor(2.0 ** (order + 1)), rtol=0.05, atol=0)


def test_errors_and_defects_along_a_path() -> None:
    path = skew_path(20, 1e-3)
    study = neumann_errors(path, repeat=2)
    assert study.errors.shape == study.defects.shape == (3, 20)
    assert (study.errors[0] > study.errors[1]).all()
    assert (study.errors[1] > study.errors[2]).all()
    exact = torch.linalg.inv(torch.eye(10) + path[0])
    expected = torch.linalg.matrix_norm(exact @ (path[0] - path[1]), 2)
    torch.testing.assert_close(study.contractions[0], expected)
    assert (study.contractions < 1).all()
    assert (study.seconds > 0).all()
    assert study.exact_seconds > 0


def test_a_path_that_does_not_move_has_no_error() -> None:
    path = skew_path(0, 0.0).expand(4, 10, 10)
    study = neumann_errors(path, [1], repeat=1)
    assert study.errors.max() < 1e-14
    assert study.defects.max() < 1e-13


def test_refuses_what_is_no_path() -> None:
    with pytest.raises(ValueError, match="at least two matrices"):
        neumann_errors(torch.zeros(1, 3, 3))
    with pytest.raises(ValueError, match="order to be at least 1"):
        neumann_errors(torch.zeros(2, 3, 3), [0])
