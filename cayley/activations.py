"""modReLU, and the activations of the Elman recurrence with their derivatives."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

__all__ = [
    "ACTIVATIONS",
    "EPSILON",
    "Activation",
    "ModReLU",
    "by_slope",
    "modrelu",
    "modrelu_stacked",
    "nonpositive",
]

EPSILON = 1e-5
NEGATIVE_SLOPE = 0.01


def modrelu(z: Tensor, b: Tensor) -> Tensor:
    r"""ReLU of the modulus with a trained bias; the sign or phase stays the same.

    .. math::
        \sigma(z) = \mathrm{sgn}(z) \max(|z| + b, 0) \quad (z \in \mathbb{R}), \qquad
        \sigma_\epsilon(z) = z\, \frac{\max(\hat z + b, 0)}{\hat z + \epsilon}, \;
        \hat z = \sqrt{|z|^2 + \epsilon} \quad (z \in \mathbb{C}).

    Note:
        The complex form with ε = 1e-5 has a finite derivative at 0, where the exact one
        :math:`\frac{z}{|z|} \max(|z| + b, 0)` has none for b > 0. The derivative there is still
        large (158 for b = 0.5), so a state near 0 grows fast.

    References:
        Unitary Evolution Recurrent Neural Networks, Arjovsky, Shah, Bengio, 2016, equation 8.
        Complex Unitary Recurrent Neural Networks using Scaled Cayley Transform, Maduranga,
        Helfrich, Ye, 2019, section 3.3.

    Arguments:
        z: Real or complex, (..., n).
        b: Real, (n).

    Returns:
        σ(z), (..., n).

    Example:
        >>> modrelu(torch.tensor([-2.0, 0.5, 0.0]), torch.tensor([-1.0, -1.0, 1.0]))
        tensor([-1.,  0.,  0.])
    """
    if z.is_complex():
        return z * _scale(z.real.square() + z.imag.square(), b)
    return z.sign() * (z.abs() + b).relu()


def modrelu_stacked(z: Tensor, b: Tensor) -> Tensor:
    r"""Complex modReLU of numbers whose real parts come first, then their imaginary parts.

    Arguments:
        z: :math:`[\mathrm{Re}\, z, \mathrm{Im}\, z]`, (..., 2n).
        b: Real, (n).

    Returns:
        :math:`[\mathrm{Re}\, \sigma_\epsilon(z), \mathrm{Im}\, \sigma_\epsilon(z)]`, (..., 2n).

    Example:
        >>> z = torch.tensor([3.0, 4.0])
        >>> torch.testing.assert_close(
        ...     torch.complex(*modrelu_stacked(z, torch.tensor([-1.0]))),
        ...     modrelu(torch.complex(*z), torch.tensor(-1.0)),
        ... )
    """
    scale = _scale(_squared_modulus(z), b)
    return z * torch.cat((scale, scale), -1)


def nonpositive(b: Tensor) -> Tensor:
    r"""Thresholds that cannot be positive, :math:`-|b|`, with the derivative 1 at 0.

    With them modReLU of complex numbers has no singularity. Thresholds of 0 or less stay as they
    are; a step of an optimizer that would make one positive is reflected at 0, and since the
    derivative is 1 there, none is stuck at 0 without a gradient.

    References:
        Complex Unitary Recurrent Neural Networks using Scaled Cayley Transform, Maduranga,
        Helfrich, Ye, 2019, section 4.

    Example:
        >>> nonpositive(torch.tensor([-0.5, 0.0, 0.25]))
        tensor([-0.5000,  0.0000, -0.2500])
    """
    return torch.where(b > 0, -b, b)


def _squared_modulus(z: Tensor) -> Tensor:
    x, y = z.chunk(2, -1)
    return x.square() + y.square()


def _scale(squared_modulus: Tensor, b: Tensor) -> Tensor:
    r = (squared_modulus + EPSILON).sqrt()
    return (r + b).relu() / (r + EPSILON)


class ModReLU(nn.Module):
    r"""The activation :func:`modrelu` with its trained bias b, which starts at 0.

    Arguments:
        features: The number n of units.
        nonpositive_bias: Whether :func:`nonpositive` keeps the bias at 0 or below.
        device, dtype: The device and dtype of b; dtype is real even for complex input.

    Shapes:
        (..., n) ↦ (..., n).

    Example:
        >>> ModReLU(3)(torch.randn(5, 3)).shape
        torch.Size([5, 3])
    """

    def __init__(
        self,
        features: int,
        *,
        nonpositive_bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.nonpositive_bias = nonpositive_bias
        self.bias = nn.Parameter(torch.empty(features, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the bias to 0, which makes the activation the identity."""
        nn.init.zeros_(self.bias)

    def forward(self, z: Tensor) -> Tensor:
        """σ(z)."""
        return modrelu(z, nonpositive(self.bias) if self.nonpositive_bias else self.bias)

    def extra_repr(self) -> str:
        """The number of units, and whether the bias is kept at 0 or below."""
        return f"{len(self.bias)}" + (", nonpositive_bias=True" if self.nonpositive_bias else "")


@dataclass(frozen=True)
class Activation:
    r"""An activation :math:`h = \phi(z; b)` and its transposed derivative.

    Attributes:
        apply: φ, a function of z and b (None without a threshold).
        pullback: A function of the gradient g with respect to h, and of h, z and b, that returns
            the gradients with respect to z and to b, the latter not yet summed over examples (None
            without a threshold). It consists of differentiable operations, so that it can be
            differentiated again.
        threshold: Whether b is an argument of φ; otherwise a bias is simply added to z.
        needs_z: Whether ``pullback`` needs z; otherwise h is enough and z is None.
        stacked: Whether z holds complex numbers, first all real parts, then all imaginary parts, so
            that b has one number for every two of z.
    """

    apply: Callable[..., Tensor]
    pullback: Callable[..., tuple[Tensor, Tensor | None]]
    threshold: bool = False
    needs_z: bool = False
    stacked: bool = False

    def thresholds(self, H: int) -> int:
        """How many thresholds H units have.

        Example:
            >>> [ACTIVATIONS[name].thresholds(6) for name in ("modrelu", "modrelu_stacked", "tanh")]
            [6, 3, 0]
        """
        if not self.threshold:
            return 0
        return H // 2 if self.stacked else H


def by_slope(
    apply: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor | float]
) -> Activation:
    r"""An activation without a threshold whose derivative is a function of its value.

    Arguments:
        apply: φ, unit by unit.
        slope: s with :math:`\phi'(z) = s(\phi(z))`, made of differentiable operations.

    Example:
        >>> sigmoid = by_slope(torch.sigmoid, lambda h: h * (1 - h))
        >>> sigmoid.pullback(torch.ones(1), torch.tensor([0.5]), None, None)[0]
        tensor([0.2500])
    """
    return Activation(lambda z, b: apply(z), lambda g, h, z, b: (g * slope(h), None))


def _modrelu_pullback(
    g: Tensor, h: Tensor, z: Tensor | None, b: Tensor | None
) -> tuple[Tensor, Tensor]:
    # h ≠ 0 exactly where |z| + b > 0 and z ≠ 0, and sgn(h) = sgn(z) there
    dz = g * (h != 0)
    return dz, dz * h.sign()


def _modrelu_stacked_pullback(g: Tensor, h: Tensor, z: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    r = (_squared_modulus(z) + EPSILON).sqrt()
    active = (r + b > 0).to(g.dtype)
    # ⟨z, g⟩ / (r + ε): the gradient in the direction of the modulus
    radial = active * sum((z * g).chunk(2, -1)) / (r + EPSILON)
    scale = active * (r + b) / (r + EPSILON)
    curvature = radial * (EPSILON - b) / (r * (r + EPSILON))
    return g * torch.cat((scale, scale), -1) + z * torch.cat((curvature, curvature), -1), radial


ACTIVATIONS: dict[str, Activation] = {
    "modrelu": Activation(modrelu, _modrelu_pullback, threshold=True),
    "modrelu_stacked": Activation(
        modrelu_stacked, _modrelu_stacked_pullback, threshold=True, needs_z=True, stacked=True
    ),
    "relu": by_slope(torch.relu, lambda h: h > 0),
    "leaky_relu": by_slope(
        lambda z: nn.functional.leaky_relu(z, NEGATIVE_SLOPE),
        lambda h: torch.ones_like(h).where(h > 0, NEGATIVE_SLOPE),
    ),
    "tanh": by_slope(torch.tanh, lambda h: 1 - h * h),
    "identity": by_slope(lambda z: z, lambda h: 1.0),
}
