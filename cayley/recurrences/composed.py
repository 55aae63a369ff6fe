"""The Elman recurrence of complex units whose matrix is a composition of simple factors."""

import math
from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

from cayley.kernels.calls import ComposedCall, ElmanGradients, ElmanStates
from cayley.kernels.cpu import composed as cpu
from cayley.kernels.cpu import native
from cayley.kernels.cuda import composed as cuda
from cayley.kernels.dispatch import backend_in_force
from cayley.kernels.operator import Found, Kernels, Operator
from cayley.kernels.primes import prime_factors
from cayley.recurrences.factored import (
    as_complex,
    as_features,
    check_factored,
    conjugate,
    factored_gradient,
    factored_loop,
    factored_shapes,
)

__all__ = ["composed", "composed_loop", "prefers_factors"]

# From so many units on, to apply the factors takes less time than their matrix: in C four fifths of
# it with 50 sequences, and as long with one; with 512 units a quarter. Transforms take longer the
# larger the prime factors are.
MANY_IN_C = 128
UNITS_A_FACTOR = 8  # at least, for 1 in the sum of their number's prime factors
# By torch operations on a CPU it is four sevenths with 50 sequences, and as long with one. An H200
# takes half the time for 512 units and 50 sequences, and almost three times as long for 116.
MANY = {"cpu": 800, "cuda": 256}


def prefers_factors(w: Tensor) -> bool:
    """Whether :func:`composed` takes less time than the recurrence with the matrix W.

    Arguments:
        w: The angles, (3, n).

    Example:
        >>> prefers_factors(torch.zeros(3, 170)), prefers_factors(torch.zeros(3, 2170))
        (False, True)
    """
    n, kind, backend = w.shape[-1], w.device.type, backend_in_force()
    in_c = kind == "cpu" and backend != "reference" and native.refusal(w) is None
    if in_c and not cpu.size_refusal(n):
        return n >= max(MANY_IN_C, UNITS_A_FACTOR * sum(prime_factors(n)))
    if n < MANY.get(kind, math.inf) or backend == "cpu":
        return False
    # what the kernels do not compute takes a GPU longer than the matrix
    return kind != "cuda" or (w.dtype == torch.float32 and not cuda.size_refusal(n, w.device))


def composed_loop(
    x: Tensor,
    h0: Tensor,
    w: Tensor,
    v: Tensor,
    b: Tensor,
    permutation: Tensor,
    *,
    U: Tensor | None = None,
    c: Tensor | None = None,
    batch_sizes: Tensor | None = None,
    reverse: bool = False,
) -> Tensor:
    r"""The recurrence as the loop that defines it; :func:`composed` computes the same.

    .. math::
        h_t = \mathrm{modReLU}_b(U x_t + c + W h_{t-1}), \qquad
        W = D_3 R_2 F^{-1} D_2 \Pi R_1 F D_1

    W is never formed: a step takes O(n log n) operations. The n complex units are 2n real features,
    [Re h, Im h].

    References:
        Unitary Evolution Recurrent Neural Networks, Arjovsky, Shah, Bengio, 2016.

    Arguments:
        x: The input, (T, B, I), or without U its contribution to each step, (T, B, 2n); with
            ``batch_sizes``, packed steps, (N, ·).
        h0: The state before the first step, (B, 2n).
        w: The angles of D, (3, n).
        v: The vectors of R as real and imaginary parts, (2, 2, n).
        b: The threshold of modReLU, (n).
        permutation: π(0), …, π(n−1), (n), of :math:`(\Pi h)_j = h_{\pi(j)}`.
        U: The input matrix, (2n, I); None if x is already its product with the input.
        c: A bias that is added to U x, (2n).
        batch_sizes: As in :func:`~cayley.recurrences.elman_loop`.
        reverse: Whether time runs from the last step to the first.

    Returns:
        The states of all steps, (T, B, 2n) or (N, 2n).

    Example:
        Without angles, reflections and a permutation W is the identity.

        >>> w, v, b = torch.zeros(3, 1), torch.zeros(2, 2, 1), torch.zeros(1)
        >>> composed_loop(torch.ones(3, 1, 2), torch.zeros(1, 2), w, v, b, torch.arange(1))[-1]
        tensor([[3.0000, 3.0000]])
    """
    call = ComposedCall(x, h0, w, v, b, permutation, U, c, batch_sizes, reverse)
    _check(call)
    return _loop(call).h


def composed(
    x: Tensor,
    h0: Tensor,
    w: Tensor,
    v: Tensor,
    b: Tensor,
    permutation: Tensor,
    *,
    U: Tensor | None = None,
    c: Tensor | None = None,
    batch_sizes: Tensor | None = None,
    reverse: bool = False,
) -> Tensor:
    """The recurrence of :func:`composed_loop` as one operator: C code, and on a GPU one kernel.

    Arguments and the result are those of :func:`composed_loop`.

    Example:
        >>> x, h0, b = torch.randn(5, 2, 6), torch.randn(2, 6), torch.zeros(3)
        >>> factors = torch.randn(3, 3), torch.randn(2, 2, 3), b, torch.randperm(3)
        >>> torch.testing.assert_close(composed(x, h0, *factors), composed_loop(x, h0, *factors))
    """
    call = ComposedCall(x, h0, w, v, b, permutation, U, c, batch_sizes, reverse)
    _check(call)
    return _composed(call).h


def _check(call: ComposedCall) -> None:
    """Raise unless the arguments of :func:`composed` fit together."""
    w, v, b, permutation = call.w, call.v, call.b, call.permutation
    n = w.shape[-1]
    shapes = [(*tensor.shape,) for tensor in (w, v, b, permutation)]
    if shapes != [(3, n), (2, 2, n), (n,), (n,)]:
        raise ValueError(f"expected w (3, n), v (2, 2, n), b (n) and permutation (n), got {shapes}")
    check_factored(call, n, w, v, permutation)


def _loop(call: ComposedCall) -> ElmanStates:
    return factored_loop(call, _Factors.of(call))


def _gradient(
    gradients: ElmanGradients, states: ElmanStates, call: ComposedCall, needed: Collection[str]
) -> Found:
    return factored_gradient(gradients, states, call, needed, _Factors.of(call))


class _Product(NamedTuple):
    """W h, and what the gradient needs of the way to it, complex, (B, n).

    Attributes:
        y: D₁ h.
        s: F y.
        q: D₂ Π R₁ s.
        u: F⁻¹ q.
        e: R₂ u, so that W h is D₃ e.
        of_s, of_u: The parts of s and u along the vectors of the reflections, (B, 1).
    """

    y: Tensor
    s: Tensor
    q: Tensor
    u: Tensor
    e: Tensor
    of_s: Tensor
    of_u: Tensor


class _Factors(NamedTuple):
    """The factors of W.

    Attributes:
        D: The diagonals of D, complex, (3, n).
        v: The vectors of R, divided by their largest entry, complex, (2, n).
        sizes: What they are divided by, 1 for those that are 0, (2, 1).
        squares: The squares of their lengths then, 1 for those that are 0, (2).
        permutation: π, (n).
    """

    D: Tensor
    v: Tensor
    sizes: Tensor
    squares: Tensor
    permutation: Tensor

    @classmethod
    def of(cls, call: ComposedCall) -> "_Factors":
        """Those of a call. Reflections do not depend on lengths, so these are constants here."""
        largest = call.v.detach().abs().amax((-2, -1))
        sizes = torch.where(largest > 0, largest, 1)
        v = call.v / sizes[:, None, None]
        squares = v.square().sum((-2, -1))
        squares = torch.where(squares > 0, squares, 1)
        D = torch.complex(call.w.cos(), call.w.sin())
        return cls(D, torch.complex(*v.unbind(1)), sizes[:, None], squares, call.permutation)

    def apply(self, h: Tensor) -> Tensor:
        """W h of real features h."""
        return as_features(self.D[2] * self._product(h).e)

    def _product(self, h: Tensor) -> _Product:
        D, v = self.D, self.v
        y = D[0] * as_complex(h)
        s = torch.fft.fft(y, norm="ortho")
        of_s = self._along(0, s)
        q = D[1] * (s - 2 * of_s * v[0]).index_select(-1, self.permutation)
        u = torch.fft.ifft(q, norm="ortho")
        of_u = self._along(1, u)
        e = u - 2 * of_u * v[1]
        return _Product(y, s, q, u, e, of_s, of_u)

    def pullback(self, h: Tensor, g: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The gradient of real features h, and those of w and v, from the gradient g of W h."""
        D, product = self.D, self._product(h)
        g = conjugate(D[2]) * as_complex(g)
        w3 = g * conjugate(product.e)
        v2, g = self._reflection(1, product.u, product.of_u, g)
        g = torch.fft.fft(g, norm="ortho")
        w2 = g * conjugate(product.q)
        g = (conjugate(D[1]) * g).index_select(-1, self.permutation.argsort())
        v1, g = self._reflection(0, product.s, product.of_s, g)
        g = torch.fft.ifft(g, norm="ortho")
        w1 = g * conjugate(product.y)
        # of e^{iw} h with the gradient g, that of w is Im(g (e^{iw} h)*)
        grad_w = torch.stack([turned.imag.sum(0) for turned in (w1, w2, w3)])
        grad_v = torch.stack((v1, v2)) / self.sizes
        grad_v = torch.stack((grad_v.real, grad_v.imag), 1)
        return as_features(conjugate(D[0]) * g), {"w": grad_w, "v": grad_v}

    def _along(self, k: int, h: Tensor) -> Tensor:
        """The part of vectors along the vector of a reflection, in units of its length, (B, 1)."""
        return (h * conjugate(self.v[k])).sum(-1, keepdim=True) / self.squares[k]

    def _reflection(self, k: int, h: Tensor, of_h: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of v and h, from the gradient g of h − 2 v (v* h) / (v* v)."""
        v, of_g = self.v[k], self._along(k, g)
        both = (conjugate(of_g) * of_h).real
        grad_v = 4 * both * v - 2 * (conjugate(of_h) * g + conjugate(of_g) * h)
        return grad_v.sum(0), g - 2 * of_g * v


_composed = Operator(
    "composed",
    call=ComposedCall,
    states=ElmanStates,
    gradients=ElmanGradients,
    loop=_loop,
    gradient=_gradient,
    shapes=factored_shapes,
    kernels={
        "cpu": Kernels(cpu.refusal, cpu.composed, cpu.composed_backward, otherwise=None),
        "cuda": Kernels(cuda.refusal, cuda.composed, cuda.composed_backward),
    },
    constants=("permutation", "batch_sizes"),
)
