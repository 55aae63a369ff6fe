"""Matrices with singular values close to one, by their singular value decomposition."""

from collections.abc import Sequence

import torch
from torch import Tensor

from cayley.checks import check_number
from cayley.parametrizations.householder import HouseholderProduct
from cayley.parametrizations.parametrization import (
    Parametrization,
    check_square,
    full_precision,
    rounding_tolerance,
)

__all__ = ["SpectralSVD", "spectral_svd"]


def spectral_svd(U: Tensor, V: Tensor, s: Tensor, margin: float) -> Tensor:
    r"""Matrix with given singular vectors and singular values within a margin of one.

    .. math::
        W = U \mathrm{diag}(\sigma) V^\top, \qquad
        \sigma = 1 + r\,(2\,\mathrm{sigmoid}(s) - 1) = 1 + r \tanh(s / 2) \in [1 - r, 1 + r]

    References:
        Stabilizing Gradients for Deep Neural Networks via Efficient SVD Parameterization, Zhang,
        Lei, Dhillon, 2018.

    Arguments:
        U: The left singular vectors, orthogonal, (n, n).
        V: The right singular vectors, orthogonal, (n, n).
        s: Free numbers that determine the singular values, (n).
        margin: The margin r.

    Returns:
        W, (n, n).

    Example:
        >>> spectral_svd(torch.eye(2), torch.eye(2), torch.tensor([0.0, 100.0]), margin=0.5)
        tensor([[1.0000, 0.0000],
                [0.0000, 1.5000]])
    """
    with full_precision(U, V, s):
        return (U * (1 + margin * (s / 2).tanh())) @ V.mT


class SpectralSVD(Parametrization):
    r"""Matrices :math:`W = U \mathrm{diag}(\sigma) V^\top` with all σ in [1 − r, 1 + r].

    U and V are products of Householder reflections. With n reflections each, every matrix with
    such singular values is reached.

    References:
        Stabilizing Gradients for Deep Neural Networks via Efficient SVD Parameterization, Zhang,
        Lei, Dhillon, 2018.

    Arguments:
        n: The size of W.
        reflections: The number of reflections in each of U and V, from 1 to n. None for n.
        margin: The margin r, at least 0 and less than 1. With 0 the matrix is orthogonal.

    Shapes:
        the entries of U's reflection vectors, of V's, as in
        :class:`~cayley.parametrizations.HouseholderProduct`, and s (n) ↦ W (n, n).

    Example:
        >>> svd = SpectralSVD(4, margin=0.1)
        >>> W = svd(*svd.sample())
        >>> bool(svd.defect(1.2 * W) > 0.19), bool(svd.defect(W) < 1e-6)
        (True, True)
    """

    names = ("u", "v", "s")

    def __init__(self, n: int, *, reflections: int | None = None, margin: float = 0.01) -> None:
        super().__init__(n)
        # at a margin of 1 a singular value could be 0
        check_number(self, "margin", margin, below=1.0)
        self.margin = margin
        self.left = HouseholderProduct(n, reflections=reflections)
        self.right = HouseholderProduct(n, reflections=reflections)

    @property
    def onto(self) -> bool:
        """Whether there are n reflections on each side."""
        return self.left.onto

    def forward(self, u: Tensor, v: Tensor, s: Tensor) -> Tensor:
        """The matrix of the reflections ``u`` and ``v`` and the numbers ``s``."""
        return spectral_svd(self.left(u), self.right(v), s, self.margin)

    def right_inverse(self, W: Tensor) -> Sequence[Tensor]:
        """Free tensors that give ``W``; needs n reflections.

        A singular value at an end of the interval would need an infinite s. It gets a finite one
        that is exact up to rounding, and that hardly moves in training.
        """
        check_square(W, self.n, is_complex=False)
        if not self.onto:
            raise ValueError(
                f"expected reflections = n = {self.n}, got {self.left.reflections}: fewer reach "
                "only some singular vectors, and a matrix with equal singular values does not "
                f"determine them. Use reflections={self.n}"
            )
        eps = torch.finfo(W.dtype).eps
        defect, tolerance = self.defect(W), rounding_tolerance(W)
        # written so that NaN fails too
        if not defect <= tolerance:
            raise ValueError(
                f"expected singular values in [{1 - self.margin:g}, {1 + self.margin:g}], got "
                f"some outside by {float(defect):.3g}: use a larger margin, or project(W), which "
                "clips them"
            )
        U, sigma, Vh = torch.linalg.svd(W.to(torch.float64))
        t = (sigma - 1) / self.margin if self.margin > 0 else torch.zeros_like(sigma)
        s = 2 * t.clamp(eps - 1, 1 - eps).atanh()
        u, v = self.left.right_inverse(U), self.right.right_inverse(Vh.mT)
        return u.to(W.dtype), v.to(W.dtype), s.to(W.dtype)

    def sample(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Sequence[Tensor]:
        """Reflection vectors with entries N(0, 1), and s = 0, so that all σ = 1."""
        u = self.left.sample(device=device, dtype=dtype)
        v = self.right.sample(device=device, dtype=dtype)
        return *u, *v, torch.zeros(self.n, device=device, dtype=dtype)

    def project(self, W: Tensor) -> Tensor:
        """The nearest matrix with singular values in the interval: those of W, clipped."""
        U, sigma, Vh = torch.linalg.svd(W)
        return (U * sigma.clamp(1 - self.margin, 1 + self.margin)) @ Vh

    def defect(self, W: Tensor) -> Tensor:
        """By how much the singular values lie outside their interval, as a Euclidean norm."""
        W = W.detach().to(torch.float64)
        if not W.isfinite().all():
            return W.new_tensor(torch.nan)
        excess = (torch.linalg.svdvals(W) - 1).abs() - self.margin
        return torch.linalg.vector_norm(excess.clamp(min=0))

    def extra_repr(self) -> str:
        """The size, the number of reflections on each side and the margin."""
        return f"{self.n}, reflections={self.left.reflections}, margin={self.margin}"
