import pytest
import torch

from cayley.activations import EPSILON
from cayley.diagnostics.activations import activation_surface, complex_grid


@pytest.mark.parametrize("b", [0.5, -0.3, 0.0])
def test_modrelu_has_the_derivatives_of_the_documents(b: float) -> None:
    """SPEC 2.4, for the approximate modReLU."""
    z = complex_grid(1.0, 20)
    found = activation_surface("modrelu", z, b)
    r = (z.abs().square() + EPSILON).sqrt()
    active = r + b > 0
    d_z = (r + b) / (r + EPSILON) + z.abs().square() * (EPSILON - b) / (2 * r * (r + EPSILON) ** 2)
    d_conj = z.square() * (EPSILON - b) / (2 * r * (r + EPSILON) ** 2)
    torch.testing.assert_close(found.d_z, (d_z * active).to(z.dtype))
    assert found.d_conj is not None
    torch.testing.assert_close(found.d_conj, d_conj * active)
    torch.testing.assert_close(found.value, z * ((r + b) * active / (r + EPSILON)))


def test_gain_at_the_origin_is_that_of_the_documents() -> None:
    """158.6 at b = 0.5, and 30.3 for the greatest derivative by the conjugate."""
    grid = complex_grid(0.01, 201)
    found = activation_surface("modrelu", grid, 0.5)
    assert found.d_conj is not None
    origin = found.d_z.abs()[100, 100]
    torch.testing.assert_close(origin, torch.tensor(158.6), atol=0.1, rtol=0)
    torch.testing.assert_close(found.d_conj.abs().max(), torch.tensor(30.3), atol=0.1, rtol=0)


def test_holomorphic_and_conjugate_functions() -> None:
    z = complex_grid(2.0, 7)
    square = activation_surface(torch.square, z)
    torch.testing.assert_close(square.d_z, 2 * z)
    assert square.d_conj is not None
    torch.testing.assert_close(square.d_conj, torch.zeros_like(z))
    conj = activation_surface(lambda z: z.conj(), z)
    torch.testing.assert_close(conj.d_conj, torch.ones_like(z))


@pytest.mark.parametrize("name", ["tanh", "relu", "leaky_relu", "identity", "modrelu"])
def test_real_activations_are_curves(name: str) -> None:
    z = torch.linspace(-2, 2, 8)
    found = activation_surface(name, z, b=-0.5)
    slopes = {
        "tanh": 1 - z.tanh() ** 2,
        "relu": (z > 0).double(),
        "leaky_relu": torch.where(z > 0, 1.0, 0.01),
        "identity": torch.ones(8),
        "modrelu": (z.abs() > 0.5).double(),
    }
    torch.testing.assert_close(found.d_z, slopes[name])
    assert found.d_conj is None


def test_an_activation_that_is_not_there() -> None:
    with pytest.raises(ValueError, match=r"complex numbers, one of \['identity', 'modrelu'\]"):
        activation_surface("tanh", complex_grid())
