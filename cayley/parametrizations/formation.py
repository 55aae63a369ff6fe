"""Forming scaled Cayley transforms from their free entries, by a kernel or by torch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from cayley.kernels.cpu import cayley as cpu
from cayley.kernels.cuda import cayley as cuda
from cayley.kernels.dispatch import use_kernel
from cayley.kernels.transforms import Transformed
from cayley.parametrizations.parametrization import full_precision
from cayley.parametrizations.polar import refine
from cayley.parametrizations.resolvent import resolvent, resolvent_under_transforms
from cayley.parametrizations.skew import last_diagonal, positions, skew_at

__all__ = ["formed_under_transforms", "kernel_for", "of_inverse", "pulled_back"]


def kernel_for(n: int, A: Tensor, D: Tensor) -> str | None:
    """The back end whose kernel forms an (n, n) matrix; None for torch.

    Example:
        >>> kernel_for(2, torch.zeros(1), torch.ones(2))
        'cpu'
    """
    kernel, refusal = None, None
    if A.is_cpu:
        kernel, refusal = "cpu", cpu.refusal(A, D)
    elif A.is_cuda:
        kernel, refusal = "cuda", cuda.refusal(n, A, D)
    preferred = kernel == "cuda" or n <= cpu.LARGEST
    use = use_kernel(kernel, refusal, A.device, preferred=preferred, otherwise=None)
    return kernel if use else None


def of_inverse(X: Tensor, D: Tensor) -> Tensor:
    """The matrix (2X − I) D from the inverse X = (I + A)⁻¹, with rounding errors removed."""
    eye = torch.eye(X.shape[-1], device=X.device, dtype=X.dtype)
    return refine(2 * X - eye) * D


def pulled_back(G: Tensor, X: Tensor, D: Tensor, places: Tensor) -> Tensor:
    r"""Gradient with respect to the free entries of A, from that of the matrix :math:`(2X - I) D`.

    .. math:: 2 (Q^\top - Q), \qquad Q = X^\top G D X^\top, \qquad X = (I + A)^{-1}

    Arguments:
        G: The gradient with respect to the matrix, (n, n).
        X: The inverse, (n, n).
        D: The diagonal of the scaling matrix, (n).
        places: Where the free entries are in A, read row by row.
    """
    with full_precision(G):
        Q = torch.addmm(G, X.mT @ (G * D), X.mT, beta=0, alpha=2)
    return (Q.mT - Q).flatten().index_select(0, places)


def formed_under_transforms(A: Tensor, D: Tensor, n: int, bandwidth: int | None) -> Tensor:
    """The scaled Cayley transform under ``vmap`` and ``grad`` of :mod:`torch.func`.

    The matrices of G networks are formed together: on a GPU in one launch if a matrix fits into a
    multiprocessor, in C one after another if they are small, and otherwise by torch.

    Arguments:
        A: The free entries, one diagonal after another.
        D: The diagonal of the scaling matrix, (n).
        n: The size of the matrix.
        bandwidth: How many diagonals above the main one may be non-zero; None for all.

    Returns:
        W, (n, n).

    Example:
        >>> A, D = torch.tensor([[0.0], [1.0]]), torch.ones(2)
        >>> torch.func.vmap(lambda A: formed_under_transforms(A, D, 2, None))(A)[1]
        tensor([[ 0., -1.],
                [ 1.,  0.]])
    """
    with full_precision(A, D):
        return Transformed.apply(_Formation(n, bandwidth, kernel_for(n, A, D)), A, D)[0]


class _Formation:
    """From A and D to W and X = (I + A)⁻¹, of one network or of several."""

    batched = True

    def __init__(self, n: int, bandwidth: int | None, kernel: str | None) -> None:
        self.n, self.bandwidth, self.kernel = n, bandwidth, kernel
        self.last = last_diagonal(n, bandwidth)

    def forward(self, A: Tensor, D: Tensor) -> Sequence[Tensor]:
        if self.kernel == "cuda":
            return cuda.cayley(A, D.contiguous(), self.last)[:2]
        if self.kernel is None:
            return self._by_torch(A, D)
        if A.dim() == 1:
            return cpu.cayley(A, D, self.last)
        pairs = [cpu.cayley(own, signs, self.last) for own, signs in zip(A, D, strict=True)]
        return [torch.stack(values) for values in zip(*pairs, strict=True)]

    def _by_torch(self, A: Tensor, D: Tensor) -> Sequence[Tensor]:
        """As precise as for a single network, and without waiting for a GPU."""
        n, places = self.n, positions(self.n, self.bandwidth, A)
        if A.dim() == 1:
            X = resolvent(skew_at(A, n, places))
            return of_inverse(X, D), X
        X = resolvent(torch.func.vmap(lambda A: skew_at(A, n, places))(A))
        return torch.func.vmap(of_inverse)(X, D), X

    def node(self, A: Tensor, D: Tensor) -> Sequence[Tensor]:
        return Transformed.apply(self, A, D)

    def loop(self, A: Tensor, D: Tensor) -> Sequence[Tensor]:
        if A.dim() == 2:
            return torch.func.vmap(self.loop)(A, D)
        X = resolvent_under_transforms(skew_at(A, self.n, positions(self.n, self.bandwidth, A)))
        return of_inverse(X, D), X

    def kept(self, results: Sequence[Tensor], flat: Sequence[Tensor]) -> Sequence[Tensor]:
        return flat

    def takes_together(self, networks: int, flat: Sequence[Tensor]) -> int:
        """All, which is not asked of what is batched."""
        return networks

    def room(self, networks: int, flat: Sequence[Tensor], grouped: bool) -> None:
        """None, which is not asked either."""

    def serves(
        self,
        dims: Sequence[int | None],
        flat: Sequence[Tensor],
        gradients: Sequence[Tensor | None] | None = None,
    ) -> bool:
        # kernels handle one batch dimension, not more
        return dims[0] is not None and flat[0].dim() == 1

    def backward(
        self,
        gradients: Sequence[Tensor | None],
        results: Sequence[Tensor],
        flat: Sequence[Tensor],
        needs: Sequence[bool],
    ) -> Sequence[Tensor | None]:
        (G, _), (_, X), (_, D) = gradients, results, flat
        if G is None or not needs[0]:
            return None, None
        if self.kernel == "cuda":
            return cuda.cayley_backward(G, X, D.contiguous(), self.last), None
        if self.kernel is None:
            return self.loop_backward(gradients, results, flat, needs, False)
        if X.dim() == 2:
            return cpu.cayley_backward(G, X, D, self.last), None
        own = zip(G, X, D, strict=True)
        return torch.stack([cpu.cayley_backward(*each, self.last) for each in own]), None

    def loop_backward(
        self,
        gradients: Sequence[Tensor | None],
        results: Sequence[Tensor],
        flat: Sequence[Tensor],
        needs: Sequence[bool],
        again: bool,
    ) -> Sequence[Tensor | None]:
        (G, _), (_, X), (A, D) = gradients, results, flat
        if G is None or not needs[0]:
            return None, None
        if not again:
            run = pulled_back if X.dim() == 2 else torch.func.vmap(pulled_back, (0, 0, 0, None))
            return run(G, X, D, positions(self.n, self.bandwidth, X)), None
        pull = torch.func.vjp(lambda A: self.loop(A, D)[0], A)[1]
        return pull(G)[0], None
