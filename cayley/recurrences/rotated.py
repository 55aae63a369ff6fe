"""The Elman recurrence of complex units whose matrix is a product of layers of plane rotations."""

from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

from cayley.kernels.calls import ElmanGradients, ElmanStates, RotatedCall
from cayley.kernels.cpu import native
from cayley.kernels.cpu import rotated as cpu
from cayley.kernels.cuda import rotated as cuda
from cayley.kernels.dispatch import backend_in_force
from cayley.kernels.operator import Found, Kernels, Operator
from cayley.kernels.rotations import FFT, PRECISE, Layer, find_pattern
from cayley.recurrences.factored import (
    as_complex,
    as_features,
    check_factored,
    conjugate,
    factored_gradient,
    factored_loop,
    factored_shapes,
)

__all__ = ["prefers_rotations", "rotated", "rotated_loop"]

# From so many units on, and up to one layer for so many of them, to turn the units takes less time
# than a product with the matrix: on a CPU with AVX-512 a seventh of it with 512 units in two
# layers, and as long with 64 in eight. An H200 takes a third to a fifth of it up to 512 units, and
# less beyond; of its own time, all that counts in a CUDA graph, it takes less from 128 units on.
MANY = 64
UNITS_A_LAYER = 8


def prefers_rotations(omega: Tensor, layers: int) -> bool:
    """Whether :func:`rotated` takes less time than the recurrence with the matrix W.

    Arguments:
        omega: The phases of D, (n).
        layers: As in :func:`rotated_loop`.

    Example:
        >>> prefers_rotations(torch.zeros(32), 2), prefers_rotations(torch.zeros(512), 514)
        (False, False)
    """
    n, kind = omega.shape[-1], omega.device.type
    if kind not in ("cpu", "cuda") or n < MANY or backend_in_force() not in ("auto", kind):
        return False
    count = len(find_pattern(n, layers))
    if n < UNITS_A_LAYER * count or count > PRECISE:
        return False
    if kind == "cuda":
        return omega.dtype == torch.float32 and not cuda.size_refusal(n, layers, omega.device)
    return native.refusal(omega) is None


def rotated_loop(
    x: Tensor,
    h0: Tensor,
    theta: Tensor,
    phi: Tensor,
    omega: Tensor,
    b: Tensor,
    *,
    layers: int = FFT,
    U: Tensor | None = None,
    c: Tensor | None = None,
    batch_sizes: Tensor | None = None,
    reverse: bool = False,
) -> Tensor:
    r"""The recurrence as the loop that defines it; :func:`rotated` computes the same.

    .. math::
        h_t = \mathrm{modReLU}_b(U x_t + c + W h_{t-1}), \qquad
        W = D F^{(1)} F^{(2)} \cdots F^{(L)}

    W is never formed: a step takes O(L n) operations. The n complex units are 2n real features,
    [Re h, Im h].

    References:
        Tunable Efficient Unitary Neural Networks (EUNN) and their application to RNNs, Jing, Shen,
        Dubček, Peurifoy, Skirlo, LeCun, Tegmark, Soljačić, 2017.

    Arguments:
        x: The input, (T, B, I), or without U its contribution to each step, (T, B, 2n); with
            ``batch_sizes``, packed steps, (N, ·).
        h0: The state before the first step, (B, 2n).
        theta: The angles of the rotations, those of :math:`F^{(1)}` first, (m) for m rotations.
        phi: Their phases, (m).
        omega: The phases of D, (n).
        b: The threshold of modReLU, (n).
        layers: The number L of layers that join neighbours, see
            :func:`~cayley.parametrizations.tunable_pattern`; 0 for those of
            :func:`~cayley.parametrizations.fft_pattern`, where n is a power of two.
        U: The input matrix, (2n, I); None if x is already its product with the input.
        c: A bias that is added to U x, (2n).
        batch_sizes: As in :func:`~cayley.recurrences.elman_loop`.
        reverse: Whether time runs from the last step to the first.

    Returns:
        The states of all steps, (T, B, 2n) or (N, 2n).

    Example:
        A quarter turn of two units takes four steps to come back.

        >>> quarter, zero = torch.tensor([torch.pi / 2]), torch.zeros(2)
        >>> h0 = torch.tensor([[1.0, 0, 0, 0]])
        >>> h = rotated_loop(torch.zeros(4, 1, 4), h0, quarter, zero[:1], zero, zero)
        >>> h[:, 0, :2].round() + 0.0  # no −0
        tensor([[ 0.,  1.],
                [-1.,  0.],
                [ 0., -1.],
                [ 1.,  0.]])
    """
    call = RotatedCall(x, h0, theta, phi, omega, b, U, c, batch_sizes, layers, reverse)
    _check(call)
    return _loop(call).h


def rotated(
    x: Tensor,
    h0: Tensor,
    theta: Tensor,
    phi: Tensor,
    omega: Tensor,
    b: Tensor,
    *,
    layers: int = FFT,
    U: Tensor | None = None,
    c: Tensor | None = None,
    batch_sizes: Tensor | None = None,
    reverse: bool = False,
) -> Tensor:
    """The recurrence of :func:`rotated_loop` as one operator, which on a GPU is one kernel.

    Arguments and the result are those of :func:`rotated_loop`.

    Example:
        >>> x, h0, angles = torch.randn(5, 2, 8), torch.randn(2, 8), torch.randn(3, 4)
        >>> factors = angles[0], angles[1], angles[2], torch.zeros(4)
        >>> torch.testing.assert_close(rotated(x, h0, *factors), rotated_loop(x, h0, *factors))
    """
    call = RotatedCall(x, h0, theta, phi, omega, b, U, c, batch_sizes, layers, reverse)
    _check(call)
    return _rotated(call).h


def _check(call: RotatedCall) -> None:
    """Raise unless the arguments of :func:`rotated` fit together."""
    # the tracer of torch.jit makes a tensor of it
    n = int(call.omega.shape[-1])
    m = sum(layer.rotations for layer in find_pattern(n, call.layers))
    shapes = [(*tensor.shape,) for tensor in (call.theta, call.phi, call.omega, call.b)]
    if shapes != [(m,), (m,), (n,), (n,)]:
        raise ValueError(
            f"expected theta ({m}), phi ({m}), omega ({n}) and b ({n}) for the rotations of "
            f"layers={call.layers}, got {shapes}"
        )
    check_factored(call, n, call.theta, call.phi, call.omega)


def _loop(call: RotatedCall) -> ElmanStates:
    return factored_loop(call, _Rotations.of(call))


def _gradient(
    gradients: ElmanGradients, states: ElmanStates, call: RotatedCall, needed: Collection[str]
) -> Found:
    return factored_gradient(gradients, states, call, needed, _Rotations.of(call))


class _Layer(NamedTuple):
    r"""What a layer does to every coordinate k with its partner p, itself if it has none.

    .. math:: h_k \mapsto d_k (c_k h_k + s_k h_p)

    Attributes:
        first, second: The coordinates of each pair, (m).
        partner: The partner of each coordinate, (n).
        c: cos θ; 1 without a partner.
        s: −sin θ for the first of a pair, sin θ for the second; 0 without a partner.
        d: :math:`e^{i \phi}` for the first of a pair, 1 for the others.
    """

    first: Tensor
    second: Tensor
    partner: Tensor
    c: Tensor
    s: Tensor
    d: Tensor

    @classmethod
    def of(cls, layer: Layer, theta: Tensor, phi: Tensor, n: int) -> "_Layer":
        """That with the angles θ and the phases φ of its pairs, of n coordinates."""
        offset, blocks, stride = layer
        every = torch.arange(n, device=theta.device)
        first, second = (
            part.flatten()
            for part in every[offset : offset + 2 * layer.rotations]
            .view(blocks, 2, stride)
            .unbind(1)
        )
        partner = every.index_copy(0, first, second).index_copy(0, second, first)
        ones, zeros = theta.new_ones(n), theta.new_zeros(n)
        cos, sin = theta.cos(), theta.sin()
        return cls(
            first,
            second,
            partner,
            ones.index_copy(0, first, cos).index_copy(0, second, cos),
            zeros.index_copy(0, first, -sin).index_copy(0, second, sin),
            torch.complex(
                ones.index_copy(0, first, phi.cos()), zeros.index_copy(0, first, phi.sin())
            ),
        )

    def apply(self, h: Tensor) -> Tensor:
        """The coordinates after this layer."""
        return self.d * (self.c * h + self.s * h.index_select(-1, self.partner))

    def undone(self, h: Tensor) -> Tensor:
        """The coordinates without the rotations, but for their phases."""
        return self.c * h - self.s * h.index_select(-1, self.partner)


class _Rotations(NamedTuple):
    """The factors of W.

    Attributes:
        D: The diagonal, complex, (n).
        layers: The layers.
    """

    D: Tensor
    layers: list[_Layer]

    @classmethod
    def of(cls, call: RotatedCall) -> "_Rotations":
        """Those of a call."""
        n = call.omega.shape[-1]
        pattern = find_pattern(n, call.layers)
        sizes = [layer.rotations for layer in pattern]
        angles = zip(pattern, call.theta.split(sizes), call.phi.split(sizes), strict=True)
        layers = [_Layer.of(layer, theta, phi, n) for layer, theta, phi in angles]
        return cls(torch.complex(call.omega.cos(), call.omega.sin()), layers)

    def apply(self, h: Tensor) -> Tensor:
        """W h of real features h."""
        return as_features(self.D * self._turned(h))

    def pullback(self, h: Tensor, g: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The gradient of h, and those of θ, φ and ω, from that of W h.

        Rotations are undone from the last that was applied to the first, those of the state as
        those of its gradient.
        """
        v = self._turned(h)
        g = conjugate(self.D) * as_complex(g)
        # of e^{iw} v with the gradient e^{iw} g, that of w is Im(g v*)
        grad_omega = (g * conjugate(v)).imag.sum(0)
        grad_theta, grad_phi = [g.real.new_zeros(0)], [g.real.new_zeros(0)]
        for layer in self.layers:
            grad_phi.append((g * conjugate(v)).imag.sum(0)[layer.first])
            d = conjugate(layer.d)
            v, g = d * v, d * g
            # to turn further moves the first of a pair along −, the second along + its partner
            along = (g * conjugate(v.index_select(-1, layer.partner))).real.sum(0)
            grad_theta.append(along[layer.second] - along[layer.first])
            v, g = layer.undone(v), layer.undone(g)
        found = {"theta": torch.cat(grad_theta), "phi": torch.cat(grad_phi), "omega": grad_omega}
        return as_features(g), found

    def _turned(self, h: Tensor) -> Tensor:
        v = as_complex(h)
        for layer in reversed(self.layers):
            v = layer.apply(v)
        return v


_rotated = Operator(
    "rotated",
    call=RotatedCall,
    states=ElmanStates,
    gradients=ElmanGradients,
    loop=_loop,
    gradient=_gradient,
    shapes=factored_shapes,
    kernels={
        "cpu": Kernels(cpu.refusal, cpu.rotated, cpu.rotated_backward),
        "cuda": Kernels(cuda.refusal, cuda.rotated, cuda.rotated_backward),
    },
)
