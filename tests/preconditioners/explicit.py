"""The preconditioner written out as a matrix: the oracle of every rule."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def P(rows: Sequence[Tensor], eps: float, *, centred: bool = True, q2: float = 1.0) -> Tensor:
    """P of one row [b, w₁, w₂, …] whose k-th part multiplied ``rows[k]``, (N, n_k)."""
    H = torch.cat(list(rows), 1)
    n = H.shape[1]
    mu = H.mean(0) if centred else torch.zeros(n)
    sigma = ((H - mu).square().mean(0) + eps).sqrt()
    U = torch.eye(n + 1)
    U[0, 1:] = -mu
    D = torch.diag(torch.cat((torch.ones(1), 1 / sigma)))
    return U @ D / q2**0.5


def preconditioned(
    grad_b: Tensor | None,
    grads: Sequence[Tensor],
    rows: Sequence[Tensor],
    eps: float,
    q2: float = 1.0,
) -> tuple[Tensor, list[Tensor]]:
    """P Pᵀ applied to every row of a block; without a bias the part of b is left out."""
    centred = grad_b is not None
    matrix = P(rows, eps, centred=centred, q2=q2)
    G = torch.cat([g.flatten(1) for g in grads], 1)
    first = grad_b[:, None] if grad_b is not None else torch.zeros(len(G), 1)
    new = torch.cat((first, G), 1) @ (matrix @ matrix.T)
    parts = new[:, 1:].split([g[0].numel() for g in grads], 1)
    return new[:, 0], [part.view_as(g) for part, g in zip(parts, grads, strict=True)]


def gradients(module: nn.Module) -> dict[str, Tensor]:
    """A copy of every gradient there is."""
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def backward(output: Tensor, seed: int = 0) -> None:
    """A backward pass with a random gradient at every entry."""
    generator = torch.Generator().manual_seed(seed)
    output.backward(torch.randn(output.shape, generator=generator))
