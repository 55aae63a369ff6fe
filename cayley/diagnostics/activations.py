"""Activations and their derivatives as surfaces over the complex plane, or as curves."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from cayley.activations import ACTIVATIONS, modrelu
from cayley.checks import check_integer, check_number

__all__ = ["Surface", "activation_surface", "complex_grid"]


class Surface(NamedTuple):
    r"""An activation at some points, and its derivatives.

    Attributes:
        value: σ(z).
        d_z: :math:`\partial \sigma / \partial z`, the derivative for real z.
        d_conj: :math:`\partial \sigma / \partial \bar z`; None for real z.
    """

    value: Tensor
    d_z: Tensor
    d_conj: Tensor | None = None


def complex_grid(radius: float = 1.0, points: int = 101) -> Tensor:
    """A square grid of complex numbers around 0.

    Arguments:
        radius: The largest real and imaginary part.
        points: The number of points on each side; an odd number includes 0.

    Returns:
        (points, points), the imaginary part growing along the first axis.

    Example:
        >>> complex_grid(1.0, 3)[0]
        tensor([-1.-1.j,  0.-1.j,  1.-1.j])
    """
    check_number("complex_grid", "radius", radius)
    check_integer("points", points)
    line = torch.linspace(-radius, radius, points)
    y, x = torch.meshgrid(line, line, indexing="ij")
    return torch.complex(x, y)


def activation_surface(
    activation: str | Callable[[Tensor], Tensor], z: Tensor, b: float = 0.0
) -> Surface:
    r"""An activation and its derivatives at given points.

    .. math::
        \frac{\partial \sigma}{\partial z} = \tfrac12 (\sigma_x - i \sigma_y), \qquad
        \frac{\partial \sigma}{\partial \bar z} = \tfrac12 (\sigma_x + i \sigma_y),
        \qquad z = x + i y

    References:
        Complex Unitary Recurrent Neural Networks using Scaled Cayley Transform, Maduranga,
        Helfrich, Ye, 2019, figure 1: :math:`|\sigma_\epsilon|` and
        :math:`|\partial \sigma_\epsilon / \partial \bar z|` for b = 0.5.

    Arguments:
        activation: A key of :data:`cayley.activations.ACTIVATIONS`, with ``"modrelu"`` in its
            complex form if z is complex; or any elementwise function.
        z: The points, real or complex, (...).
        b: The threshold of modReLU.

    Example:
        >>> surface = activation_surface("modrelu", complex_grid(), b=0.5)
        >>> surface.value.shape, int(surface.d_conj.abs().argmax()) != 0
        (torch.Size([101, 101]), True)
    """
    function = _function(activation, z, b)
    if not z.is_complex():
        with torch.enable_grad():
            leaf = z.detach().clone().requires_grad_()
            value = function(leaf)
            (slope,) = torch.autograd.grad(value.sum(), leaf)
        return Surface(value.detach(), slope)
    with torch.enable_grad():
        x, y = (part.detach().clone().requires_grad_() for part in (z.real, z.imag))
        value = function(torch.complex(x, y))
        u_x, u_y = torch.autograd.grad(value.real.sum(), (x, y), retain_graph=True)
        v_x, v_y = torch.autograd.grad(value.imag.sum(), (x, y))
    s_x, s_y = torch.complex(u_x, v_x), torch.complex(u_y, v_y)
    return Surface(value.detach(), (s_x - 1j * s_y) / 2, (s_x + 1j * s_y) / 2)


def _function(
    activation: str | Callable[[Tensor], Tensor], z: Tensor, b: float
) -> Callable[[Tensor], Tensor]:
    if callable(activation):
        return activation
    known = sorted(
        {"modrelu", "identity"} if z.is_complex() else {*ACTIVATIONS} - {"modrelu_stacked"}
    )
    if activation not in known:
        kind = "complex" if z.is_complex() else "real"
        raise ValueError(
            f"expected an activation of {kind} numbers, one of {known}, or a function, got "
            f"{activation!r}"
        )
    threshold = torch.full((), b, device=z.device, dtype=z.dtype.to_real())
    if activation == "modrelu":
        return lambda z: modrelu(z, threshold)
    return lambda z: ACTIVATIONS[activation].apply(z, None)
