"""The complex scaled Cayley transform against its plain formula and the theorem on gradients."""

import pytest
import torch

from cayley.parametrizations import ComplexScaledCayley, scaled_cayley


def test_is_the_plain_formula_with_its_gradients() -> None:
    n = 6
    map = ComplexScaledCayley(n)
    results = []
    G = torch.randn(n, n, dtype=torch.complex128)
    x, theta = (X + torch.randn_like(X) for X in map.sample())
    eye = torch.eye(n, dtype=torch.complex128)
    for kind in ("ours", "plain"):
        own = x.clone().requires_grad_(), theta.clone().requires_grad_()
        if kind == "ours":
            W = map(*own)
        else:
            A = map.skew(own[0])
            W = torch.linalg.solve(eye + A, eye - A) @ torch.exp(1j * own[1]).diag()
        results.append((W, *torch.autograd.grad(W, own, G)))
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("bandwidth", [None, 1, 3])
def test_the_pullback_in_closed_form_is_that_of_the_plain_formula(
    n: int, bandwidth: int | None
) -> None:
    map = ComplexScaledCayley(n, bandwidth=bandwidth)
    x, theta = ((X + torch.randn_like(X)).requires_grad_() for X in map.sample())
    # a lazy conjugate, as gradients of W* are
    G = torch.randn(n, n, dtype=torch.complex128).mH
    eye, A = torch.eye(n), map.skew(x)
    plain = torch.linalg.solve(eye + A, eye - A) @ torch.exp(1j * theta).diag()
    W, pullback = map.with_pullback(x, theta)
    assert not W.requires_grad
    torch.testing.assert_close(W, plain)
    torch.testing.assert_close(pullback(G), torch.autograd.grad(plain, (x, theta), G))


def test_gradients_are_those_of_the_theorem() -> None:
    """With ∂L/∂W = conj(g)/2: E = C^T − C̄ and ∂L/∂θ = 2 Re(i diag(G^T K) ⊙ d)."""
    n = 5
    map = ComplexScaledCayley(n)
    x, theta = ((X + torch.randn_like(X)).requires_grad_() for X in map.sample())
    g = torch.randn(n, n, dtype=torch.complex128)
    W = map(x, theta)
    grad_x, grad_theta = torch.autograd.grad(W, (x, theta), g)
    A, d, G = map.skew(x).detach(), torch.exp(1j * theta).detach(), g.conj() / 2
    eye = torch.eye(n, dtype=torch.complex128)
    C = torch.linalg.inv(eye + A).T @ G @ (d.diag() + W.detach().T)
    E = C.T - C.conj()
    torch.testing.assert_close(E, -E.mH)
    # off the diagonal the numbers behind A have twice Re E and Im E, on it Im E
    twice = 2 * E - E.diagonal().diag()
    torch.testing.assert_close(map.skew(grad_x), twice)
    K = scaled_cayley(A, torch.ones_like(d))
    torch.testing.assert_close(grad_theta, 2 * (1j * (G.T @ K).diagonal() * d).real)


def test_phases_have_period_two_pi() -> None:
    map = ComplexScaledCayley(5)
    x, theta = map.sample()
    torch.testing.assert_close(map(x, theta), map(x, theta + 2 * torch.pi))


def test_number_of_free_entries() -> None:
    x, theta = ComplexScaledCayley(7).sample()
    assert x.numel() + theta.numel() == 7**2 + 7
    assert (x[7 * 3 :] == 0).all()
    assert ((theta >= 0) & (theta < 2 * torch.pi)).all()
