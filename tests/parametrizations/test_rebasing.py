import pytest
import torch
from torch import Tensor

from cayley.parametrizations import Skew, scaled_cayley
from cayley.parametrizations.rebasing import rebase_cayley


def large(n: int, scale: float = 30.0) -> tuple[Tensor, Tensor]:
    A = scale * torch.randn(n, n)
    return A - A.mT, torch.where(torch.rand(n) < 0.5, -1.0, 1.0)


@pytest.mark.parametrize("n", [1, 2, 5, 12])
def test_w_stays_and_entries_are_small(n: int) -> None:
    A, D = large(n)
    new = rebase_cayley(A, D)
    assert new.A.abs().max() <= 1
    assert torch.equal(new.A, -new.A.mT)
    assert torch.equal(new.D.abs(), torch.ones(n))
    torch.testing.assert_close(scaled_cayley(new.A, new.D), scaled_cayley(A, D))


def test_steps_go_over_to_the_new_coordinates() -> None:
    """dA = K dA' Kᵀ and its inverse move W alike, in first order."""
    A, D = large(6, 2.0)
    new = rebase_cayley(A, D)
    step = torch.randn(6, 6)
    step = step - step.mT
    moved = torch.func.jvp(lambda A: scaled_cayley(A, D), (A,), (step,))[1]
    turned = new.vector(step)
    again = torch.func.jvp(lambda A: scaled_cayley(A, new.D), (new.A,), (turned,))[1]
    torch.testing.assert_close(again, moved)
    torch.testing.assert_close(new.K @ new.vector(step) @ new.K.mT, step)


def test_gradients_go_over_to_the_new_coordinates() -> None:
    A, D = large(6, 2.0)
    new, skew, target = rebase_cayley(A, D), Skew(6), torch.randn(6, 6)

    def gradient(A: Tensor, D: Tensor) -> Tensor:
        entries = skew.entries(A).requires_grad_()
        loss = (scaled_cayley(skew(entries), D) * target).sum().exp()
        return torch.autograd.grad(loss, entries)[0]

    carried = skew.entries(new.covector(skew(gradient(A, D))))
    torch.testing.assert_close(carried, gradient(new.A, new.D))


def test_squares_stay_nonnegative_and_are_kept_by_the_identity() -> None:
    A, D = large(6)
    V = torch.rand(6, 6)
    V = V + V.mT
    assert (rebase_cayley(A, D).covector_squares(V) >= 0).all()
    small, D = large(6, 0.01)
    same = rebase_cayley(small, D)
    assert torch.equal(same.D, D)
    torch.testing.assert_close(same.covector_squares(V), V)


def test_steps_and_gradients_agree_with_differences() -> None:
    """The new A as a function of the old, by ``right_inverse`` of W for the new D."""
    A, D = large(5, 1.0)
    new, h = rebase_cayley(A, D), 1e-6
    step, G = (x - x.mT for x in torch.randn(2, 5, 5))
    eye = torch.eye(5)

    def coordinates(A: Tensor) -> Tensor:
        W = scaled_cayley(A, D) * new.D
        return torch.linalg.solve(eye + W, eye - W, left=False)

    torch.testing.assert_close(coordinates(A), new.A)
    moved = (coordinates(A + h * step) - coordinates(A - h * step)) / (2 * h)
    torch.testing.assert_close(new.vector(step), moved, rtol=1e-5, atol=1e-7)
    # a gradient gives the same slope along the same step
    torch.testing.assert_close((new.covector(G) * moved).sum(), (G * step).sum(), rtol=1e-5, atol=0)


def test_squares_of_one_gradient_are_those_of_the_new() -> None:
    A, D = large(6)
    new, G = rebase_cayley(A, D), torch.randn(6, 6)
    G = G - G.mT
    # as Adam has them after one step
    carried = new.covector_squares(1e-3 * G.square(), 0.1 * G)
    torch.testing.assert_close(carried, 1e-3 * new.covector(G).square())


def test_means_stay_within_the_bound_of_their_squares() -> None:
    A, D = large(6)
    new, (V, M) = rebase_cayley(A, D), torch.randn(2, 6, 6)
    V, M = V.square() + V.mT.square(), M - M.mT
    c = max(1.0, (M.square() / V).max().item()) ** 0.5
    small = new.covector_squares(V, M).sqrt() * c * (1 + 1e-9)
    assert (new.covector(M).abs() <= small).all()


def test_single_precision_stays_single() -> None:
    A, D = (x.float() for x in large(8))
    new = rebase_cayley(A, D)
    assert new.A.dtype == new.D.dtype == torch.float32
    W = scaled_cayley(A.double(), D.double()).float()
    torch.testing.assert_close(scaled_cayley(new.A, new.D), W, rtol=0, atol=1e-5)
