"""The nearest orthogonal matrix, and one step towards it."""

import torch
from torch import Tensor

from cayley.tracing import computes_now, no_autocast

__all__ = ["polar", "refine"]

# a step makes a small singular value half as large again: this many take 1e-7 to 1
MOST_STEPS = 50


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
    if W.dim() != 2 or W.shape[0] != W.shape[1]:
        raise ValueError(f"expected a square matrix, (n, n), got {tuple(W.shape)}")
    if W.dtype.to_real() not in (torch.float32, torch.float64):
        raise TypeError(f"expected single or double precision, got {W.dtype}: call W.float()")
    U, _, Vh = torch.linalg.svd(W)
    return U @ Vh


def refine(W: Tensor) -> Tensor:
    r"""Remove the rounding errors that keep W from being orthogonal; gradients ignore this.

    One Newton–Schulz step, :math:`W + \tfrac12 W (I - W^* W)`. It reduces the distance
    :math:`\delta` that a solve or a power series leaves to :math:`O(\delta^2)` plus the unit
    roundoff. The correction is a constant for autograd, since it is not a function of the
    parameters.

    Note:
        If the distance is large, more steps follow, as many as are needed. That depends on numbers,
        so it is done on the CPU only: with a GPU it would wait for the device, and a compiler
        cannot trace it.

    Arguments:
        W: An almost orthogonal (unitary) matrix, (n, n).

    Returns:
        W with the correction, (n, n).

    Example:
        >>> W = torch.eye(2) * 1.001
        >>> float((refine(W) - torch.eye(2)).abs().max()) < 2e-6
        True
    """
    # from a constant: neither backward nor forward derivatives go through the correction
    V = W.detach()
    with no_autocast(W.device):
        defect = _defect(V)
        if V.is_cpu and computes_now(V) and _size(defect) > _one_step(V):
            return _nearby(V, defect) + (W - V)
        return torch.addmm(W, V, defect, alpha=0.5)


def _nearby(W: Tensor, defect: Tensor) -> Tensor:
    """An orthogonal (unitary) matrix near W by Newton–Schulz steps, from any distance."""
    size = _size(defect)
    if size > 1:
        # the steps converge if no singular value is above √3, and now none is above 1
        W = W / (1 + size) ** 0.5
        defect = _defect(W)
    for _ in range(MOST_STEPS):
        W = torch.addmm(W, W, defect, alpha=0.5)
        defect = _defect(W)
        if not _size(defect) > _one_step(W):
            break
    return torch.addmm(W, W, defect, alpha=0.5)


def _defect(W: Tensor) -> Tensor:
    eye = torch.eye(W.shape[-1], device=W.device, dtype=W.dtype)
    return torch.addmm(eye, W.mH, W, alpha=-1)


def _size(defect: Tensor) -> float:
    return float(torch.linalg.matrix_norm(defect))


def _one_step(W: Tensor) -> float:
    """The largest distance that one step reduces to the unit roundoff."""
    return torch.finfo(W.dtype).eps ** 0.5
