"""Unitary matrices composed of diagonal, Fourier, reflection and permutation matrices."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from cayley.parametrizations.cayley_complex import phases_to_diagonal
from cayley.parametrizations.householder import unit
from cayley.parametrizations.parametrization import Parametrization, full_precision

__all__ = ["UnitaryComposition", "compose"]


def compose(h: Tensor, w: Tensor, v: Tensor, permutation: Tensor) -> Tensor:
    r"""Apply a unitary matrix of simple factors to vectors, in O(n log n) operations each.

    .. math::
        h \mapsto W h = D_3 R_2 F^{-1} D_2 \Pi R_1 F D_1 h, \qquad
        D_k = \mathrm{diag}(e^{i w_k}), \quad R_k = I - 2 v_k v_k^* / \|v_k\|^2

    F is the unitary discrete Fourier transform and :math:`(\Pi h)_j = h_{\pi(j)}`. W is never
    formed.

    Note:
        A reflection along a zero vector drops out: its factor is the identity.

    References:
        Unitary Evolution Recurrent Neural Networks, Arjovsky, Shah, Bengio, 2016.

    Arguments:
        h: Vectors, real or complex, (..., n).
        w: The angles of the three diagonal matrices, (3, n).
        v: The two reflection vectors as real and imaginary parts, (2, 2, n).
        permutation: π(0), …, π(n−1), (n).

    Returns:
        The vectors W h, complex, (..., n).

    Example:
        Without angles, reflections and a permutation the Fourier transforms cancel.

        >>> h = torch.tensor([1.0, 2.0, 3.0])
        >>> compose(h, torch.zeros(3, 3), torch.zeros(2, 2, 3), torch.arange(3)).real.round()
        tensor([1., 2., 3.])
    """
    with full_precision(w, v):
        D = phases_to_diagonal(w)
        R = torch.complex(*unit(v, (-2, -1)).unbind(1))
        h = _reflect(torch.fft.fft(D[0] * h, norm="ortho"), R[0])
        h = D[1] * h.index_select(-1, permutation)
        return D[2] * _reflect(torch.fft.ifft(h, norm="ortho"), R[1])


def _reflect(h: Tensor, v: Tensor) -> Tensor:
    """Vectors h − 2 v (v* h) / (v* v), for a v of length one or zero."""
    # the length is one only up to rounding, which matters for small n
    square = (v.real.square() + v.imag.square()).sum()
    along = (h * v.conj()).sum(-1, keepdim=True) / torch.where(square > 0, square, 1)
    return h - 2 * along * v


class UnitaryComposition(Parametrization):
    r"""Unitary matrices :math:`W = D_3 R_2 F^{-1} D_2 \Pi R_1 F D_1`, from 7n numbers.

    The phases of the diagonal matrices D and the vectors of the reflections R are trained; the
    permutation Π is drawn once; F is the Fourier transform. For n > 7 only some unitary matrices
    are reached.

    References:
        Unitary Evolution Recurrent Neural Networks, Arjovsky, Shah, Bengio, 2016.

    Arguments:
        n: The size of W.

    Attributes:
        odd_permutation: The numbers 2π(j) + 1, (n).

    Shapes:
        angles w (3, n), reflection vectors v as real and imaginary parts (2, 2, n)
        ↦ W complex (n, n).

    Example:
        >>> composition = UnitaryComposition(5)
        >>> W = composition(*composition.sample())
        >>> W.dtype, bool(composition.defect(W) < 1e-5)
        (torch.complex64, True)
    """

    names = ("w", "v")
    phases = ("w",)
    is_complex = True
    odd_permutation: Tensor

    def __init__(self, n: int) -> None:
        super().__init__(n)
        # An average of equal integer buffers, as in torch.optim.swa_utils, may be rounded down by
        # one: of 2π + 1 that leaves 2π, from which π can still be read.
        self.register_buffer("odd_permutation", 2 * torch.arange(n) + 1)

    @property
    def permutation(self) -> Tensor:
        """π(0), …, π(n−1), (n)."""
        return self.odd_permutation // 2

    def forward(self, w: Tensor, v: Tensor) -> Tensor:
        """The unitary matrix of the angles ``w`` and the reflection vectors ``v``."""
        eye = torch.eye(self.n, device=w.device, dtype=w.dtype)
        # row k holds W e_k, which is column k of W
        return compose(eye, w, v, self.permutation).mT.contiguous()

    def sample(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Sequence[Tensor]:
        """Angles w ~ U[−π, π), v ~ U[−a, a) with a = √(6/(2n + 2)), and a random permutation."""
        permutation = torch.randperm(self.n, device=self.odd_permutation.device)
        self.odd_permutation.copy_(2 * permutation + 1)
        w = torch.rand(3, self.n, device=device, dtype=dtype) * 2 - 1
        v = torch.rand(2, 2, self.n, device=device, dtype=dtype) * 2 - 1
        return w * math.pi, v * (6 / (2 * self.n + 2)) ** 0.5
