"""Orthogonal matrices by the matrix exponential, around a base that can be moved."""

from collections.abc import Sequence

import torch
from torch import Tensor

from cayley.initializers import rotation_angles
from cayley.parametrizations.parametrization import (
    Parametrization,
    check_orthogonal,
    check_square,
    full_precision,
)
from cayley.parametrizations.polar import refine
from cayley.parametrizations.skew import Skew, diagonal_entries

__all__ = ["MatrixExponential", "matrix_exponential"]


def matrix_exponential(K: Tensor, B: Tensor) -> Tensor:
    r"""Exponential of a skew-symmetric (skew-Hermitian) matrix, seen from a base.

    .. math:: W = B \exp(K)

    Note:
        The error of :func:`torch.matrix_exp` grows with the norm of K: in float32, n = 256, it is
        off the orthogonal matrices by 4e-5 √n for :math:`\|K\|_2 = 30`.
        :func:`~cayley.parametrizations.polar.refine` brings that to 3e-7 √n, and to 1e-6 √n up to
        :math:`\|K\|_2 = 3000`; angles above π repeat themselves, so that a norm near that is a
        sign of a step size that is too large.

    References:
        Cheap Orthogonal Constraints in Neural Networks: A Simple Parametrization of the Orthogonal
        and Unitary Group, Lezcano-Casado, Martínez-Rubio, 2019.

    Arguments:
        K: A skew matrix, real or complex, (n, n).
        B: An orthogonal (unitary) matrix, (n, n).

    Returns:
        W, orthogonal (unitary), (n, n).

    Example:
        >>> quarter = torch.tensor([[0.0, -torch.pi / 2], [torch.pi / 2, 0.0]])
        >>> (matrix_exponential(quarter, torch.eye(2)) * 100).round() + 0.0
        tensor([[   0., -100.],
                [ 100.,    0.]])
    """
    with full_precision(K, B):
        return refine(B @ torch.matrix_exp(K))


class MatrixExponential(Parametrization):
    r"""Orthogonal matrices :math:`W = B \exp(K)`.

    K is skew-symmetric and trained; B is orthogonal and fixed, the identity until
    ``right_inverse`` or ``rebase_`` moves it. K reaches every orthogonal matrix whose determinant
    is that of B.

    Note:
        Far from K = 0 the exponential distorts: a step of K is not the step of W that the gradient
        asked for. ``rebase_`` moves the base to the present W, where the gradient with respect to K
        is the Riemannian one (dynamic trivialisation). With ``matrix`` a
        :class:`~cayley.parametrizations.StructuredMatrix` of this map, call it every so many
        steps::

            optimizer.step()
            if step % 100 == 0:
                matrix.map.rebase_(matrix.K)

        A momentum that the optimiser holds is kept as it is.

    References:
        Cheap Orthogonal Constraints in Neural Networks: A Simple Parametrization of the Orthogonal
        and Unitary Group, Lezcano-Casado, Martínez-Rubio, 2019.
        Trivializations for Gradient-Based Optimization on Manifolds, Lezcano-Casado, 2019.

    Arguments:
        n: The size of W.

    Shapes:
        K's free entries (n(n−1)/2) ↦ W (n, n).

    Example:
        >>> exponential = MatrixExponential(4)
        >>> W = exponential(*exponential.sample())
        >>> bool(exponential.defect(W) < 1e-6), round(float(W.det()))
        (True, 1)
    """

    names = ("K",)
    B: Tensor

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.skew = Skew(n)
        self.register_buffer("B", torch.eye(n))

    def forward(self, K: Tensor) -> Tensor:
        """The orthogonal matrix of the free entries ``K``."""
        return matrix_exponential(self.skew(K), self.B)

    def right_inverse(self, W: Tensor) -> Tensor:
        """K = 0; the base becomes ``W``."""
        check_square(W, self.n, is_complex=False)
        check_orthogonal(W, self.defect(W))
        self.B.copy_(refine(W))
        return W.new_zeros(diagonal_entries(self.n, 1, self.n - 1))

    @torch.no_grad()
    def rebase_(self, K: Tensor) -> None:
        """Move the base to the matrix of ``K`` and set ``K`` to zero: W stays, up to rounding."""
        self.B.copy_(self(K))
        K.zero_()

    def sample(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Sequence[Tensor]:
        """Blocks [[0, t], [−t, 0]] with t ~ U[0, π/2), whose exponential is e^{±it}, and B = I."""
        self.B.copy_(torch.eye(self.n, device=self.B.device, dtype=self.B.dtype))
        x = torch.zeros(diagonal_entries(self.n, 1, self.n - 1), device=device, dtype=dtype)
        # on the diagonal next to the main one, every second entry begins a block
        x[: self.n - 1 : 2] = rotation_angles(self.n, device=device, dtype=dtype)
        return (x,)
