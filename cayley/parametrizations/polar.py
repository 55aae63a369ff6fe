"""The nearest orthogonal matrix, and one step towards it."""

import torch
from torch import Tensor

__all__ = ["polar", "refine"]


def polar(W: Tensor) -> Tensor:
    r"""Orthogonal (unitary) matrix nearest to a square matrix, in the Frobenius norm.

    .. math:: W = U \Sigma V^* \quad\mapsto\quad U V^*

    Arguments:
        W: A real or complex matrix, (n, n).

    Returns:
        The unitary polar factor of W, (n, n).

    Example:
        >>> polar(torch.tensor([[0.0, -3.0], [2.0, 0.0]]))
        tensor([[ 0., -1.],
                [ 1.,  0.]])
    """
    U, _, Vh = torch.linalg.svd(W)
    return U @ Vh


def refine(W: Tensor) -> Tensor:
    r"""Remove the rounding errors that keep W from being orthogonal; the gradient ignores it.

    One Newton–Schulz step, :math:`W + \tfrac12 W (I - W^* W)`. A matrix that a solve or a
    power series leaves at a distance :math:`\delta` comes to :math:`O(\delta^2)` plus the unit
    roundoff. The correction is constant for autograd: it stands for no function of the parameters.

    Arguments:
        W: An almost orthogonal (unitary) matrix, (n, n).

    Returns:
        W with the correction, (n, n).

    Example:
        >>> W = torch.eye(2) * 1.001
        >>> float((refine(W) - torch.eye(2)).abs().max()) < 2e-6
        True
    """
    with torch.no_grad():
        eye = torch.eye(W.shape[-1], device=W.device, dtype=W.dtype)
        defect = torch.addmm(eye, W.mH, W, alpha=-1)
    return torch.addmm(W, W.detach(), defect, alpha=0.5)
