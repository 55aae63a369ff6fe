"""Orthogonal matrices as products of Householder reflections."""

from collections.abc import Sequence

import torch
from torch import Tensor

from cayley.checks import is_integer
from cayley.parametrizations.parametrization import (
    Parametrization,
    check_orthogonal,
    check_square,
    full_precision,
    rounding_tolerance,
)
from cayley.parametrizations.polar import refine

__all__ = ["HouseholderProduct", "householder_product", "unit"]


def unit(x: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """Vectors along ``dim`` divided by their lengths; a zero vector stays zero.

    Example:
        >>> unit(torch.tensor([[3e-30, 0.0], [4e-30, 0.0]]), 0)
        tensor([[0.6000, 0.0000],
                [0.8000, 0.0000]])
    """
    # scaled first: the squares of tiny or huge numbers would underflow or overflow
    largest = x.detach().abs().amax(dim, keepdim=True)
    x = x / torch.where(largest > 0, largest, 1)
    square = (x * x).sum(dim, keepdim=True)
    return x / torch.where(square > 0, square, 1).sqrt()


def householder_product(U: Tensor) -> Tensor:
    r"""Product of the reflections along the columns of a matrix.

    .. math::
        H_1 H_2 \cdots H_K = I - \hat U T \hat U^\top, \qquad
        H_k = I - 2 \hat u_k \hat u_k^\top, \quad \hat u_k = u_k / \|u_k\|, \qquad
        T^{-1} = \tfrac12 I + \mathrm{striu}(\hat U^\top \hat U)

    In this form the K reflections are a triangular solve and two products of matrices. No step
    waits for the GPU.

    Note:
        A reflection along a zero vector drops out: its factor is the identity, and the gradient
        with respect to the vector is zero. The gradient grows as :math:`1 / \|u_k\|`.
        With nearly parallel vectors in float32, :math:`\|W^\top W - I\|_F` would be 2e-5 √n
        (n = K = 256); :func:`~cayley.parametrizations.polar.refine` removes that.

    References:
        A Storage-Efficient WY Representation for Products of Householder Transformations,
        Schreiber, Van Loan, 1989.
        Accumulating Householder Transformations, Revisited, Joffrain, Low, Quintana-Ortí, van de
        Geijn, Van Zee, 2006.

    Arguments:
        U: The vectors :math:`u_1, \dots, u_K` as columns, (n, K).

    Returns:
        The product, orthogonal, (n, n).

    Example:
        >>> householder_product(torch.tensor([[1.0], [-1.0]])).abs().round()
        tensor([[0., 1.],
                [1., 0.]])
    """
    with full_precision(U):
        n, K = U.shape
        U = unit(U, 0)
        half = 0.5 * torch.eye(K, device=U.device, dtype=U.dtype)
        inverse = (U.mT @ U).triu(1) + half
        product = U @ torch.linalg.solve_triangular(inverse, U.mT, upper=True)
        return refine(torch.eye(n, device=U.device, dtype=U.dtype) - product)


class HouseholderProduct(Parametrization):
    r"""Orthogonal matrices :math:`W = H_n H_{n-1} \cdots H_{n-l+1} D`.

    .. math:: H_k = \mathrm{diag}(I_{n-k},\ I_k - 2 u u^\top / \|u\|^2), \quad u \in \mathbb{R}^k

    The vectors u are trained; D is a diagonal of ±1 and fixed, all +1 until ``right_inverse``
    chooses it. With l = n reflections every orthogonal matrix is reached for some D.

    Note:
        :math:`H_1` is −1 for every u. The reference gives it a sign instead, so that it reaches
        every orthogonal matrix; here the sign is in D.

    References:
        Efficient Orthogonal Parametrisation of Recurrent Neural Networks Using Householder
        Reflections, Mhammedi, Hellicar, Rahman, Bailey, 2017.

    Arguments:
        n: The size of W.
        reflections: The number l of reflections, from 1 to n. None for n.

    Shapes:
        the entries of all u (n + (n−1) + … + (n−l+1)) ↦ W (n, n). Column j of the (n, l) matrix
        of the vectors is zero above row j; the entries on and below are stored row after row.

    Example:
        >>> householder = HouseholderProduct(4, reflections=3)
        >>> W = householder(*householder.sample())
        >>> bool(householder.defect(W) < 1e-6), round(float(W.det()))
        (True, -1)
    """

    names = ("u",)
    D: Tensor

    def __init__(self, n: int, *, reflections: int | None = None) -> None:
        super().__init__(n)
        self.reflections = n if reflections is None else reflections
        if not is_integer(self.reflections) or not 1 <= self.reflections <= n:
            raise ValueError(
                f"expected reflections from 1 to n = {n}, got {reflections!r}: n of them reach "
                "every orthogonal matrix"
            )
        self.register_buffer("D", torch.ones(n))

    @property
    def onto(self) -> bool:
        """Whether there are n reflections."""
        return self.reflections == self.n

    def forward(self, u: Tensor) -> Tensor:
        """The orthogonal matrix of the entries ``u`` of the reflection vectors."""
        U = u.new_zeros(self.n, self.reflections).index_put(self._entries(u.device), u)
        return householder_product(U) * self.D

    def right_inverse(self, W: Tensor) -> Tensor:
        """Entries of reflection vectors that give ``W``; sets D accordingly.

        D is +1 except for columns that need no reflection and those after the last reflection.
        """
        check_square(W, self.n, is_complex=False)
        check_orthogonal(W, self.defect(W))
        tolerance = rounding_tolerance(W)
        M = W.detach().to(torch.float64, copy=True)
        U, D = torch.zeros_like(M[:, : self.reflections]), torch.ones_like(M[0])
        for j in range(self.reflections):
            u, sign = _reflect_to_first(M[j:, j], 4e-3 * tolerance)
            M[j:, j:] -= 2 * torch.outer(u, u @ M[j:, j:])
            # a short vector would have a large gradient: give it the length that sample does
            U[j:, j], D[j] = u * (self.n - j) ** 0.5, sign
        rest = M[self.reflections :, self.reflections :]
        signs = torch.where(rest.diagonal() < 0, -1.0, 1.0)
        distance = torch.linalg.matrix_norm(rest - signs.diag())
        if not distance <= tolerance:
            raise ValueError(
                f"expected a product of {self.reflections} reflections of this form, got a matrix "
                f"that after undoing {self.reflections} reflections is {float(distance):.3g} away "
                f"from a diagonal of ±1: reflections={self.n} reaches every orthogonal matrix"
            )
        D[self.reflections :] = signs
        self.D.copy_(D)
        return U[self._entries(W.device)].to(W.dtype)

    def sample(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Sequence[Tensor]:
        """Vectors with entries u ~ N(0, 1), hence of uniform direction, and D = I."""
        self.D.fill_(1.0)
        l = self.reflections  # noqa: E741
        return (torch.randn(l * self.n - l * (l - 1) // 2, device=device, dtype=dtype),)

    def extra_repr(self) -> str:
        """The size and the number of reflections."""
        return f"{self.n}, reflections={self.reflections}"

    def _entries(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Rows and columns of the free entries in the matrix of the reflection vectors."""
        rows, columns = torch.tril_indices(self.n, self.reflections, device=device)
        return rows, columns


def _reflect_to_first(w: Tensor, rounding: float) -> tuple[Tensor, float]:
    """Unit vector whose reflection takes the unit vector ``w`` to ±e_1, and that sign.

    The sign is +, by u = w − e_1, unless w is e_1 already: then u = e_1, which takes it to −e_1.
    """
    u = w.clone()
    rest = u[1:].square().sum()
    if u[0] <= 0:
        u[0] -= 1
    elif rest.sqrt() > rounding:
        # w_1 − 1 without cancellation
        u[0] = -rest / (1 + u[0])
    else:
        return torch.eye(1, len(u), device=u.device, dtype=u.dtype)[0], -1.0
    return unit(u, 0), 1.0
