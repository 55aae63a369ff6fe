"""Eigenvalues of a symmetric matrix that is given by its products with vectors."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from cayley.checks import check_integer

__all__ = ["Product", "Ritz", "condition_number", "lanczos"]

Product = Callable[[Tensor], Tensor]


class Ritz(NamedTuple):
    """The result of Lanczos iteration.

    Attributes:
        values: Approximate eigenvalues, in increasing order, (k).
        residuals: Bounds of the distance of each from an exact eigenvalue, (k).
    """

    values: Tensor
    residuals: Tensor


@torch.no_grad()
def lanczos(
    product: Product, start: Tensor, steps: int | None = None, *, metric: Product | None = None
) -> Ritz:
    r"""Eigenvalues of a symmetric H, or of M H, given by products with vectors.

    .. math:: \beta_{j+1} u_{j+1} = H v_j - \alpha_j u_j - \beta_j u_{j-1}, \qquad v_j = M u_j

    The vectors are orthonormal in the sense :math:`u_i^\top M u_j = \delta_{ij}`, in which
    :math:`M H` is symmetric for every positive semidefinite M; each is orthogonalised against all
    previous ones, twice. As many steps as there are distinct eigenvalues find all of them; fewer
    find the outer ones first.

    References:
        An iteration method for the solution of the eigenvalue problem of linear differential and
        integral operators, Lanczos, 1950.

    Arguments:
        product: From v to H v, (n).
        start: The first direction, (n); it determines dtype and device. Eigenvectors that are
            orthogonal to it are not found.
        steps: The number of steps; None for n.
        metric: From u to M u; None for M = I.

    Example:
        >>> d = torch.tensor([1.0, 2.0, 5.0])
        >>> lanczos(lambda v: d * v, torch.ones(3)).values
        tensor([1.0000, 2.0000, 5.0000])
    """
    n = len(start)
    steps = n if steps is None else steps
    check_integer("steps", steps)
    M = (lambda u: u) if metric is None else metric
    alphas: list[Tensor] = []
    betas: list[Tensor] = []
    us, vs = (start.new_empty(min(steps, n), n) for _ in range(2))
    w, scale = start, start.new_zeros(())
    tolerance = n * torch.finfo(start.dtype).eps
    for k in range(min(steps, n)):
        z = M(w)
        beta = (w @ z).clamp_min(0).sqrt()
        # nothing is left but rounding errors
        if beta == 0 or (alphas and beta <= tolerance * scale):
            break
        if alphas:
            betas.append(beta)
        us[k], vs[k] = w / beta, z / beta
        w = product(vs[k])
        alphas.append(w @ vs[k])
        for _ in range(2):
            w = w - (vs[: k + 1] @ w) @ us[: k + 1]
        scale = torch.stack((scale, alphas[-1].abs(), *betas[-1:])).max()
    if not alphas:
        raise ValueError("expected a start that the metric does not map to 0, got one that it does")
    T = torch.diag(torch.stack(alphas))
    if betas:
        off = torch.stack(betas)
        T = T + torch.diag(off, 1) + torch.diag(off, -1)
    if not T.isfinite().all():
        raise ValueError("expected finite products, got inf or NaN: the loss or its gradient is")
    values, vectors = torch.linalg.eigh(T)
    last = (w @ M(w)).clamp_min(0).sqrt()
    return Ritz(values, last * vectors[-1].abs())


def condition_number(eigenvalues: Tensor, *, floor: float = 0.0) -> Tensor:
    """The largest modulus divided by the smallest one above a floor, ().

    Arguments:
        eigenvalues: (k).
        floor: Relative to the largest: eigenvalues that are not above it count as 0 and are left
            out. With ``floor=0`` only those that are exactly 0 are left out.

    Example:
        >>> condition_number(torch.tensor([-8.0, 2.0, 0.0]))
        tensor(4.)
    """
    modulus = eigenvalues.abs()
    largest = modulus.max()
    return largest / modulus.where(modulus > floor * largest, torch.inf).min()
