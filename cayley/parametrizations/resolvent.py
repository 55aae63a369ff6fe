"""The inverse of I + A for a skew matrix A."""

from typing import Any, cast

import torch
from torch import Tensor

from cayley.kernels.cuda import resolvent as cuda
from cayley.kernels.dispatch import use_kernel
from cayley.parametrizations.structured import acting_on_reals

__all__ = ["resolvent", "resolvent_under_transforms"]


def resolvent(A: Tensor) -> Tensor:
    r"""Inverse :math:`X = (I + A)^{-1}` for a skew-symmetric (skew-Hermitian) A, without a graph.

    On a GPU the search for pivots takes most of the time of a factorisation, and here it can be
    left out: every Schur complement of I + A has a Hermitian part of at least I, so no pivot is
    small. It can still cost as many digits as :math:`\|A\|^2` has, and so can the condition of
    I + A, which is :math:`\|A\|` for odd n. A GPU therefore computes in double precision: up to a
    norm of about 5000 the result is off by less than rounding it to float32. One kernel eliminates
    where it can hold the matrix, and waits for pivots most of the time. On a CPU double precision
    would take twice as long, so there :func:`~cayley.parametrizations.polar.refine` corrects the
    result if needed.

    Note:
        No step waits for the GPU. Non-finite A gives non-finite X, not an error.

    Arguments:
        A: A skew matrix, real or complex, (n, n), or several, (…, n, n).

    Returns:
        X, of the shape of A.

    Example:
        >>> resolvent(torch.tensor([[0.0, 1.0], [-1.0, 0.0]]))
        tensor([[ 0.5000, -0.5000],
                [ 0.5000,  0.5000]])
    """
    A = A.detach()
    if not A.is_cuda:
        return torch.linalg.inv_ex(_identity_of(A) + A).inverse
    n = A.shape[-1]
    reason = cuda.refusal(2 * n if A.is_complex() else n, A.real)
    if not use_kernel("cuda", reason, A.device, otherwise=None):
        return _by_factors(A)
    if A.dim() > 2:
        return torch.stack([resolvent(one) for one in A])
    X = cuda.resolvent(acting_on_reals(A.resolve_conj()))
    return torch.complex(X[:n, :n], X[n:, :n]) if A.is_complex() else X


def resolvent_under_transforms(A: Tensor) -> Tensor:
    r"""The same with a graph, under ``vmap`` and ``grad`` of :mod:`torch.func`.

    .. math:: \partial L / \partial A = -X^* (\partial L / \partial X) X^*

    torch's own inverse of several matrices may wait for the GPU, which a CUDA graph cannot record.

    Arguments:
        A: A skew matrix, real or complex, (n, n).

    Returns:
        X, (n, n).

    Example:
        >>> A = torch.tensor([[[0.0, 1.0], [-1.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]])
        >>> torch.func.vmap(resolvent_under_transforms)(A)[0]
        tensor([[ 0.5000, -0.5000],
                [ 0.5000,  0.5000]])
    """
    return cast(Tensor, _Resolvent.apply(A))


class _Resolvent(torch.autograd.Function):
    @staticmethod
    # pyrefly: ignore[bad-override]
    def forward(A: Tensor) -> Tensor:
        return resolvent(A)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    # pyrefly: ignore[bad-override]
    def backward(ctx: Any, G: Tensor) -> Tensor:
        (X,) = ctx.saved_tensors
        return -X.mH @ G @ X.mH

    @staticmethod
    # pyrefly: ignore[bad-override]
    def vmap(info: Any, in_dims: tuple[int], A: Tensor) -> tuple[Tensor, int]:
        return resolvent_under_transforms(A.movedim(in_dims[0], 0)), 0


def _by_factors(A: Tensor) -> Tensor:
    """The same on a GPU by torch."""
    exact = A.to(torch.promote_types(A.dtype, torch.float64))
    eye = _identity_of(exact)
    LU = _factorise(eye + exact)
    L_inverse = torch.linalg.solve_triangular(LU, eye, upper=False, unitriangular=True)
    return torch.linalg.solve_triangular(LU, L_inverse, upper=True).to(A.dtype)


def _factorise(M: Tensor) -> Tensor:
    """L and U of a matrix on a GPU, or of several, without pivots."""
    if M.dim() > 2:
        # not together: torch may leave that to MAGMA, which waits for the GPU
        return torch.stack([_factorise(one) for one in M])
    return torch.linalg.lu_factor_ex(M, pivot=False).LU


def _identity_of(A: Tensor) -> Tensor:
    return torch.eye(A.shape[-1], device=A.device, dtype=A.dtype)
