import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from cayley.activations import (
    ACTIVATIONS,
    EPSILON,
    ModReLU,
    modrelu,
    modrelu_stacked,
    nonpositive,
)


def test_real_modrelu_is_its_formula() -> None:
    z = torch.tensor([-2.0, -0.5, 0.0, 0.5, 2.0])
    for b in (-1.0, 0.0, 1.0):
        expected = [(1 if x > 0 else -1 if x < 0 else 0) * max(abs(x) + b, 0) for x in z.tolist()]
        torch.testing.assert_close(modrelu(z, torch.full((5,), b)), torch.tensor(expected))


def test_modrelu_with_zero_bias_is_the_identity() -> None:
    z = torch.randn(7, 3)
    torch.testing.assert_close(modrelu(z, torch.zeros(3)), z)


def test_complex_modrelu_shrinks_the_modulus_and_keeps_the_phase() -> None:
    z = torch.randn(100, 4, dtype=torch.complex128) + 3
    b = torch.tensor([-0.5, -0.1, 0.0, 0.4])
    h = modrelu(z, b)
    torch.testing.assert_close(h.angle(), z.angle())
    # ε = 1e-5 leaves the modulus within about ε/|z|
    torch.testing.assert_close(h.abs(), (z.abs() + b).relu(), rtol=0, atol=2e-5)


def test_complex_derivatives_are_those_of_the_theorem() -> None:
    """∂σ/∂z and ∂σ/∂z̄ of the ε-form, as the documents state them (theorem 2.4.2)."""
    z = torch.randn(50, dtype=torch.complex128)
    b = torch.randn(50) * 0.3
    r = (z.abs() ** 2 + EPSILON).sqrt()
    active = (r + b > 0).double()
    d_z = active * (
        (r + b) / (r + EPSILON) + z.abs() ** 2 * (EPSILON - b) / (2 * r * (r + EPSILON) ** 2)
    )
    d_conj = active * z**2 * (EPSILON - b) / (2 * r * (r + EPSILON) ** 2)
    g = torch.randn(50, dtype=torch.complex128)
    z.requires_grad_()
    b.requires_grad_()
    grad_z, grad_b = torch.autograd.grad(modrelu(z, b), (z, b), g)
    torch.testing.assert_close(grad_z, d_z.conj() * g + d_conj * g.conj())
    torch.testing.assert_close(grad_b, active * (g.conj() * z / (r + EPSILON)).real.detach())


def test_thresholds_that_are_never_positive() -> None:
    b = torch.tensor([-0.7, -0.1, 0.0, 0.2], requires_grad=True)
    torch.testing.assert_close(nonpositive(b), torch.tensor([-0.7, -0.1, 0.0, -0.2]))
    # 1 at 0: a threshold that starts there can leave it
    torch.testing.assert_close(grad_of_sum(b), torch.tensor([1.0, 1.0, 1.0, -1.0]))
    layer, peer = ModReLU(4, nonpositive_bias=True), ModReLU(4)
    with torch.no_grad():
        layer.bias.copy_(b)
        peer.bias.copy_(-b.abs())
    z = torch.randn(5, 4, dtype=torch.complex128)
    assert torch.equal(layer(z), peer(z))
    assert "4, nonpositive_bias=True" in repr(layer)


def grad_of_sum(b: Tensor) -> Tensor:
    return torch.autograd.grad(nonpositive(b).sum(), b)[0]


def test_gain_at_zero_is_bounded_without_positive_thresholds() -> None:
    """What makes a state at 0 explode: (√ε + b)/(√ε + ε) at z = 0, 158.6 for b = 0.5."""
    z = torch.zeros(1, dtype=torch.complex128, requires_grad=True)
    gains = []
    for kept in (False, True):
        layer = ModReLU(1, nonpositive_bias=kept)
        torch.nn.init.constant_(layer.bias, 0.5)
        gains.append(torch.autograd.grad(layer(z).real.sum(), z)[0].abs().item())
    root = EPSILON**0.5
    assert gains == pytest.approx([(root + 0.5) / (root + EPSILON), 0.0])
    assert gains[0] > 158


def test_stacked_form_is_the_complex_one() -> None:
    z, b = torch.randn(5, 3, dtype=torch.complex128), torch.randn(3)
    stacked = modrelu_stacked(torch.cat((z.real, z.imag), -1), b)
    h = modrelu(z, b)
    torch.testing.assert_close(stacked, torch.cat((h.real, h.imag), -1))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_pullback_is_the_transposed_derivative(name: str) -> None:
    activation = ACTIVATIONS[name]
    z = torch.randn(20, 6, requires_grad=True)
    b = 0.5 * torch.randn(activation.thresholds(6)) if activation.threshold else None
    inputs = [z] if b is None else [z, b.requires_grad_()]
    h = activation.apply(z, b)
    g = torch.randn_like(h)
    expected = torch.autograd.grad(h, inputs, g)
    dz, db = activation.pullback(g, h, z if activation.needs_z else None, b)
    torch.testing.assert_close(dz, expected[0])
    assert (db is None) == (b is None)
    if db is not None:
        torch.testing.assert_close(db.sum(0), expected[1])


def test_pullback_at_the_kinks_agrees_with_autograd() -> None:
    """z = 0 with b > 0 happens at the first step whenever h₀ = 0 and x = 0."""
    z = torch.tensor([0.0, 0.0, 1.0, -1.0, 0.0], requires_grad=True)
    b = torch.tensor([1.0, -1.0, -1.0, -1.0, 0.0], requires_grad=True)
    h = modrelu(z, b)
    g = torch.ones(5)
    dz, db = ACTIVATIONS["modrelu"].pullback(g, h, None, b)
    expected = torch.autograd.grad(h, (z, b), g)
    torch.testing.assert_close((dz, db), expected)
    assert h.tolist() == [0.0] * 5


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_module(dtype: torch.dtype) -> None:
    module = ModReLU(4)
    z = torch.randn(3, 4, dtype=dtype, requires_grad=True)
    torch.testing.assert_close(module(z), z, rtol=0, atol=4e-3)
    with torch.no_grad():
        module.bias.uniform_(-0.5, 0.5)

    def apply(z: Tensor, b: Tensor) -> Tensor:
        return torch.func.functional_call(module, {"bias": b}, (z,))

    assert gradcheck(apply, (z, module.bias))
    assert repr(module) == "ModReLU(4)"
