"""Unitary matrices as layers of Givens rotations with phases."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from cayley.checks import is_integer
from cayley.kernels.rotations import PRECISE, Layer, fft_pattern, tunable_pattern
from cayley.parametrizations.cayley_complex import phases_to_diagonal
from cayley.parametrizations.parametrization import (
    Parametrization,
    check_orthogonal,
    check_square,
    full_precision,
)
from cayley.parametrizations.polar import refine

__all__ = ["GivensLayers", "Layer", "apply_rotations", "fft_pattern", "rotate", "tunable_pattern"]


def rotate(h: Tensor, theta: Tensor, phi: Tensor, layer: Layer) -> Tensor:
    r"""Apply one layer of rotations to vectors, elementwise.

    .. math::
        \begin{pmatrix} h_i \\ h_j \end{pmatrix} \mapsto
        \begin{pmatrix} e^{i\phi}\cos\theta & -e^{i\phi}\sin\theta \\
        \sin\theta & \cos\theta \end{pmatrix} \begin{pmatrix} h_i \\ h_j \end{pmatrix}

    for each pair (i, j); coordinates without a partner stay.

    References:
        Tunable Efficient Unitary Neural Networks (EUNN) and their application to RNNs, Jing, Shen,
        Dubček, Peurifoy, Skirlo, LeCun, Tegmark, Soljačić, 2017.

    Arguments:
        h: Vectors, complex, (..., n).
        theta: The angles of the rotations, (m) for m pairs.
        phi: Their phases, (m).
        layer: The pairs.

    Returns:
        The rotated vectors, complex, (..., n).

    Example:
        >>> h, quarter = torch.tensor([1 + 0j, 2, 3]), torch.tensor([torch.pi / 2])
        >>> rotate(h, quarter, 0 * quarter, Layer(offset=1, blocks=1, stride=1)).real.round()
        tensor([ 1., -3.,  2.])
    """
    paired = 2 * layer.rotations
    start, middle, end = h.split([layer.offset, paired, h.shape[-1] - layer.offset - paired], -1)
    first, second = middle.unflatten(-1, (layer.blocks, 2, layer.stride)).unbind(-2)
    cos, sin, phase = (
        x.unflatten(0, (layer.blocks, layer.stride))
        for x in (theta.cos(), theta.sin(), phases_to_diagonal(phi))
    )
    turned = torch.stack((phase * (cos * first - sin * second), sin * first + cos * second), -2)
    return torch.cat((start, turned.flatten(-3), end), -1)


def apply_rotations(
    h: Tensor, theta: Tensor, phi: Tensor, omega: Tensor, pattern: Sequence[Layer]
) -> Tensor:
    r"""Apply all layers of rotations and the diagonal to vectors, in O(n) operations a layer.

    .. math:: h \mapsto W h = D F^{(1)} F^{(2)} \cdots F^{(L)} h, \qquad
        D = \mathrm{diag}(e^{i\omega})

    W is never formed.

    References:
        Tunable Efficient Unitary Neural Networks (EUNN) and their application to RNNs, Jing, Shen,
        Dubček, Peurifoy, Skirlo, LeCun, Tegmark, Soljačić, 2017.

    Arguments:
        h: Vectors, real or complex, (..., n).
        theta: The angles of the rotations, those of :math:`F^{(1)}` first, (m) for m rotations.
        phi: Their phases, (m).
        omega: The phases of D, (n).
        pattern: The pairs of each layer.

    Returns:
        The vectors W h, complex, (..., n).

    Example:
        >>> h, zero = torch.tensor([1.0, 2.0]), torch.zeros(1)
        >>> apply_rotations(h, zero, zero, torch.zeros(2), tunable_pattern(2, layers=2))
        tensor([1.+0.j, 2.+0.j])
    """
    with full_precision(theta, phi, omega):
        sizes = [layer.rotations for layer in pattern]
        D = phases_to_diagonal(omega)
        h = h.to(torch.promote_types(h.dtype, D.dtype))
        layers = zip(pattern, theta.split(sizes), phi.split(sizes), strict=True)
        for layer, angles, phases in reversed(list(layers)):
            h = rotate(h, angles, phases, layer)
        return D * h


class GivensLayers(Parametrization):
    r"""Unitary matrices :math:`W = D F^{(1)} F^{(2)} \cdots F^{(L)}` of layers of rotations.

    A layer rotates disjoint pairs of coordinates, see :func:`rotate`;
    :math:`D = \mathrm{diag}(e^{i\omega})`. All angles are trained.

    Note:
        The reference states that L = n layers of the tunable pattern reach every unitary matrix.
        That holds with the phase on the other side of the rotation. With
        :math:`e^{i\phi}` in the first row, as printed, the phases of :math:`F^{(1)}` do the same as
        those of D, there is none to the right of the rotations of :math:`F^{(L)}`, and the matrices
        have fewer than n² dimensions (13 of 16 for n = 4). n + 2 layers reach every unitary matrix,
        and have a ``right_inverse``.

    References:
        Tunable Efficient Unitary Neural Networks (EUNN) and their application to RNNs, Jing, Shen,
        Dubček, Peurifoy, Skirlo, LeCun, Tegmark, Soljačić, 2017.

    Arguments:
        n: The size of W.
        layers: The number L of layers of the tunable pattern, or "fft" for log₂ n layers in the
            pattern of the fast Fourier transform, where n is a power of two.

    Shapes:
        angles θ (m), phases φ (m) of m rotations, those of the first layer first, ω (n)
        ↦ W complex (n, n).

    Example:
        >>> givens = GivensLayers(8, layers="fft")
        >>> theta, phi, omega = givens.sample()
        >>> theta.shape, bool(givens.defect(givens(theta, phi, omega)) < 1e-5)
        (torch.Size([12]), True)
    """

    names = ("theta", "phi", "omega")
    phases = ("omega",)
    is_complex = True

    def __init__(self, n: int, *, layers: int | Literal["fft"] = 2) -> None:
        super().__init__(n)
        if layers != "fft" and (not is_integer(layers) or layers < 1):
            raise ValueError(f'expected a number of layers of at least 1, or "fft", got {layers!r}')
        self.layers: int | Literal["fft"] = layers
        self.pattern = fft_pattern(n) if layers == "fft" else tunable_pattern(n, layers)

    @property
    def onto(self) -> bool:
        """Whether there are enough layers of neighbours to reach every unitary matrix."""
        return self.layers != "fft" and self.layers >= self.n + 2

    def forward(self, theta: Tensor, phi: Tensor, omega: Tensor) -> Tensor:
        """The unitary matrix of the angles ``theta`` and the phases ``phi`` and ``omega``."""
        with full_precision(theta, phi, omega):
            eye = torch.eye(self.n, device=theta.device, dtype=theta.dtype)
            # row k holds W e_k, which is column k of W
            W = apply_rotations(eye, theta, phi, omega, self.pattern).mT.contiguous()
            return refine(W) if len(self.pattern) > PRECISE else W

    def right_inverse(self, W: Tensor) -> Sequence[Tensor]:
        """Angles and phases that give ``W``; needs n + 2 layers."""
        check_square(W, self.n, is_complex=True)
        W = W.to(torch.promote_types(W.dtype, torch.complex64))
        check_orthogonal(W, self.defect(W))
        if self.layers == "fft" or not self.onto:
            raise NotImplementedError(
                f"{self.layers} layers reach only a subset of the unitary matrices of size "
                f"{self.n} and have no inverse: draw a matrix with sample(), or "
                f'init="sample", or use layers={self.n + 2}'
            )
        theta, phi, omega = _factorize(W, self.layers)
        real = W.dtype.to_real()
        return theta.to(real), phi.to(real), omega.to(real)

    def sample(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Sequence[Tensor]:
        """All angles and phases ~ U[−π, π)."""
        rotations = sum(layer.rotations for layer in self.pattern)
        return tuple(
            (torch.rand(size, device=device, dtype=dtype) * 2 - 1) * math.pi
            for size in (rotations, rotations, self.n)
        )

    def extra_repr(self) -> str:
        """The size and the layers."""
        return f"{self.n}, layers={self.layers!r}"


def _factorize(W: Tensor, layers: int) -> tuple[Tensor, Tensor, Tensor]:
    """Angles and phases of at least n + 2 layers of the tunable pattern, and ω, that give W.

    W = F(1) ⋯ F(n) Δ: the entries below the diagonal are eliminated, one antidiagonal after
    another from the corner, alternately by rotations from the left and from the right (the
    rectangle of Clements, Humphreys, Metcalf, Kolthammer, Walmsley, Optimal design for universal
    multiport interferometers, 2016). The phases of the remaining diagonal Δ go into two more
    layers.
    """
    n = len(W)
    # on the CPU: these are thousands of operations on a few numbers each
    M = W.detach().to("cpu", torch.complex128, copy=True)
    # at [layer, first coordinate of the pair]
    theta, phi = M.new_zeros(2, layers, n, dtype=torch.float64)
    from_the_right = []
    for i in range(1, n):
        for j in range(i):
            if (n - i) % 2:
                layer, k = j, n - i + j - 1
                x, y = M[k : k + 2, j]
                theta[layer, k] = torch.atan2(y.abs(), x.abs())
                phi[layer, k] = (x * y.conj()).angle()
                F = _rotation(theta[layer, k], phi[layer, k])
                M[k : k + 2] = F.mH @ M[k : k + 2]
            else:
                layer, k = n - 1 - j, i - 1 - j
                x, y = M[n - 1 - j, k : k + 2]
                theta[layer, k] = torch.atan2(x.abs(), y.abs())
                phi[layer, k] = (x * y.conj()).angle()
                # a phase in the first row cannot eliminate x; the next loop moves it there
                F = _rotation(-theta[layer, k], phi[layer, k]).mT
                M[:, k : k + 2] = M[:, k : k + 2] @ F.mH
                from_the_right.append((layer, k))
    delta = M.diagonal()
    for layer, k in reversed(from_the_right):
        turn = phases_to_diagonal(phi[layer, k])
        phi[layer, k] = (delta[k] * delta[k + 1].conj()).angle()
        delta[k] = delta[k + 1] * turn
    for k in range(n - 1):
        phi[n + (k - n) % 2, k] = (delta[k] * delta[-1].conj()).angle()
    theta, phi = (
        torch.cat([x[layer, layer % 2 : n - 1 : 2] for layer in range(layers)])
        for x in (theta, phi)
    )
    omega = delta[-1].angle().expand(n)
    return theta.to(W.device), phi.to(W.device), omega.to(W.device)


def _rotation(theta: Tensor, phi: Tensor) -> Tensor:
    """The matrix of one rotation, (2, 2)."""
    cos, sin, phase = theta.cos(), theta.sin(), phases_to_diagonal(phi)
    return torch.stack((phase * cos, -phase * sin, sin + 0j, cos + 0j)).view(2, 2)
