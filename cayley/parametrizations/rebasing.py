"""Another diagonal D for the same matrix of a scaled Cayley transform."""

from typing import NamedTuple

import torch
from torch import Tensor

from cayley.parametrizations.cayley import scaled_cayley
from cayley.parametrizations.signature import small_cayley

__all__ = ["Rebased", "rebase_cayley"]


class Rebased(NamedTuple):
    r"""Other coordinates of the same orthogonal matrix.

    A step dA' in the new coordinates is the step :math:`dA = K\, dA'\, K^\top` in the old ones.

    Attributes:
        A: The new skew matrix, with all :math:`|a_{ij}| \le 1`, (n, n).
        D: The new diagonal of ±1, (n).
        K: The change of coordinates, float64, (n, n).
    """

    A: Tensor
    D: Tensor
    K: Tensor

    def covector(self, G: Tensor) -> Tensor:
        r"""A gradient with respect to the old A as one with respect to the new: :math:`K^\top G K`.

        Arguments:
            G: Skew-symmetric, (n, n).
        """
        return (self.K.mT @ G.to(self.K) @ self.K).to(G)

    def vector(self, step: Tensor) -> Tensor:
        r"""A step of the old A as one of the new: :math:`K^{-1} dA\, K^{-\top}`.

        However large A is, it grows by a factor of at most :math:`1 + \|A'\|^2`, while that of
        :meth:`covector` reaches :math:`1 + \|A\|^2`.

        Arguments:
            step: dA, skew-symmetric, (n, n).
        """
        inverse = torch.linalg.inv(self.K)
        return (inverse @ step.to(self.K) @ inverse.mT).to(step)

    def covector_squares(self, V: Tensor, mean: Tensor | None = None) -> Tensor:
        r"""Mean squares of gradients, as if what varies were independent between entries.

        .. math::
            (K \odot K)^\top (V - M \odot M / c^2) (K \odot K) + M' \odot M' / c^2, \qquad
            c = \max(1, \max_{ij} |m_{ij}| / \sqrt{v_{ij}})

        with the mean M, which is 0 if it is not given, and :math:`M' = K^\top M K`. So no
        :math:`|m'_{ij}| / \sqrt{v'_{ij}}` exceeds c, and steps of Adam do not grow. c is above 1
        if V is the mean over a longer time than M.

        Arguments:
            V: The mean squares with respect to the old A, symmetric, (n, n).
            mean: M, the mean of the gradients, skew-symmetric, (n, n).
        """
        squares, varying = self.K.square(), V.to(self.K)
        constant = torch.zeros_like(varying)
        if mean is not None:
            M = mean.to(self.K)
            # 0 / 0 on the diagonal
            bound = (M.square() / varying).nan_to_num(0.0, torch.inf).max().clamp_min(1)
            varying = (varying - M.square() / bound).clamp_min(0)
            constant = self.covector(M).square() / bound
        return (squares.mT @ varying @ squares + constant).to(V)


@torch.no_grad()
def rebase_cayley(A: Tensor, D: Tensor) -> Rebased:
    r"""Choose D again for the same :math:`W = (I + A)^{-1}(I - A) D`, so that A is small.

    .. math::
        K = (I + A)(I + A')^{-1}, \qquad
        dW = -2 X\, dA\, X D = -2 X' dA' X' D' \;\Rightarrow\; dA = K\, dA' K^\top

    with :math:`X = (I + A)^{-1}`. As an eigenvalue of :math:`W D` approaches −1, entries of A grow
    without bound, and W hardly moves with A any more. With another D they are at most 1.

    References:
        Minimizing the Cayley transform of an orthogonal matrix by multiplying by signature
        matrices, O'Dorney, 2014, theorem 1.1.

    Arguments:
        A: A skew-symmetric matrix, (n, n).
        D: The diagonal of ±1, (n).

    Example:
        A rotation by nearly π is minus a rotation by nearly 0.

        >>> A = torch.tensor([[0.0, 100.0], [-100.0, 0.0]])
        >>> new = rebase_cayley(A, torch.ones(2))
        >>> new.A, new.D
        (tensor([[ 0.0000, -0.0100],
                 [ 0.0100,  0.0000]]), tensor([-1., -1.]))
        >>> torch.testing.assert_close(scaled_cayley(new.A, new.D), scaled_cayley(A, torch.ones(2)))
    """
    exact, signs = A.to(torch.float64), D.to(torch.float64)
    new_A, new_D = small_cayley(scaled_cayley(exact, signs))
    eye = torch.eye(len(D), device=A.device, dtype=torch.float64)
    K = torch.linalg.solve(eye + new_A, eye + exact, left=False)
    return Rebased(new_A.to(A.dtype), new_D.to(D.dtype), K)
