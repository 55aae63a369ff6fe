r"""The diagonal D for which the inverse of the scaled Cayley transform is small.

An orthogonal W with eigenvalue −1 has no Cayley transform, and one with an eigenvalue near −1 has a
huge one. But for some diagonal D of modulus one, W D has a transform with all
:math:`|a_{ij}| \le 1`: for a D that (locally) maximises :math:`|\det(D + W)|`. This module climbs
to such a maximum.
"""

import torch
from torch import Tensor

__all__ = ["small_cayley"]


def small_cayley(W: Tensor) -> tuple[Tensor, Tensor]:
    r"""Skew A with :math:`|a_{ij}| \le 1` and diagonal D with :math:`W = (I+A)^{-1}(I-A) D`.

    References:
        Minimizing the Cayley transform of an orthogonal matrix by multiplying by signature
        matrices, O'Dorney, 2014, theorem 1.1.
        Is there a small skew Cayley transform with zero diagonal?, Kahan, 2006.

    Arguments:
        W: An orthogonal (unitary) matrix, (n, n).

    Returns:
        A, (n, n), and the diagonal of D, (n): ±1 for a real W, of modulus one for a complex W.

    Example:
        −I has no Cayley transform; with D = −I it is that of A = 0.

        >>> A, D = small_cayley(-torch.eye(2))
        >>> A.abs().max(), D
        (tensor(0.), tensor([-1., -1.]))
    """
    work = W.to(torch.complex128 if W.is_complex() else torch.float64)
    D = _regular_signature(work)
    # A climb works on A in place and accumulates rounding errors. So A is formed again from D after
    # each climb, and another one follows if that one had not reached the maximum.
    while True:
        A = _cayley(work, D)
        D, climbed = _climb(A, D)
        if not climbed:
            break
    # the bound is exact in theory, so any excess here is rounding
    A = A / A.abs().clamp(min=1)
    return A.to(W.dtype), D.to(W.dtype)


def _cayley(W: Tensor, D: Tensor) -> Tensor:
    """A = (I + K)⁻¹ (I − K) of K = W D*, made exactly skew."""
    K = W * D.conj()
    eye = torch.eye(len(K), device=K.device, dtype=K.dtype)
    A = torch.linalg.solve(eye + K, eye - K)
    return (A - A.mH) / 2


def _regular_signature(W: Tensor) -> Tensor:
    """D such that every pivot of D + W is at least 1 in modulus: d = pivot / |pivot|."""
    M = W.clone()
    D = torch.ones_like(W[0])
    for k in range(len(W)):
        pivot = M[k, k]
        if pivot != 0:
            D[k] = pivot / pivot.abs()
        M[k + 1 :, k + 1 :] -= torch.outer(M[k + 1 :, k], M[k, k + 1 :]) / (pivot + D[k])
    return D


def _climb(A: Tensor, D: Tensor) -> tuple[Tensor, bool]:
    """Change D, one or two entries at a time, until no |a_ij| is above 1.

    Multiplying d_j by (1 − a_jj)/(1 + a_jj) makes a_jj vanish and multiplies |det(D + W)| by
    √(1 + |a_jj|²). Negating d_i and d_j, if a_ii = a_jj = 0, multiplies it by |a_ij|². Both make
    it larger, and it is bounded, so this ends.
    """
    A, D, climbed = A.clone(), D.clone(), False
    tolerance = 1e-10
    while True:
        largest, index = A.abs().flatten().max(0)
        # also where it is NaN
        if not largest > 1 + tolerance:
            return D, climbed
        climbed = True
        i, j = divmod(int(index), len(A))
        for k in {i, j}:
            if A.is_complex():
                D[k] = D[k] * _turn(A, k)
        if i != j and A[i, j].abs() > 1:
            D[[i, j]] = -D[[i, j]]
            _negate(A, [i, j])


def _negate(A: Tensor, S: list[int]) -> None:
    """Replace A by the transform for D with the entries S negated."""
    rows, columns = A[S].clone(), A[:, S].clone()
    inverse = torch.linalg.inv(rows[:, S])
    A -= columns @ inverse @ rows
    A[S] = inverse @ rows
    A[:, S] = -columns @ inverse
    index = torch.tensor(S, device=A.device)
    A[index[:, None], index] = inverse


def _turn(A: Tensor, k: int) -> Tensor:
    """Replace A by the transform with a_kk = 0, and return the factor for d_k."""
    a, row, column = A[k, k].clone(), A[k].clone(), A[:, k].clone()
    A += a / (1 - a * a) * torch.outer(column, row)
    A[k], A[:, k], A[k, k] = row / (1 + a), column / (1 - a), 0
    return (1 - a) / (1 + a)
