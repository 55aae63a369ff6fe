r"""One step of following an eigenpair, with work that does not depend on numbers.

What :func:`~.eigenvalue.subspace.follow` decides by looking at numbers, a GPU would
have to be waited for. Here nothing is decided: the products, the terms of the series and the steps
of the inverse iteration are as many as the caller says, and the numbers that tell whether they were
enough are part of the answer.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from cayley.kernels.cuda.eigenpair import Small, iterate_on_device
from cayley.parametrizations.eigenvalue.subspace import Projection

__all__ = ["Track", "iterate", "project", "stands_alone", "track"]

# The matrix of the inverse iteration is squared so often, and its shift is off the estimate by so
# much, lest it be singular; src/pencil.cu has the same numbers.
SQUARINGS = 3
SHIFT = 1e-6
# The imaginary part, relatively, up to which an eigenvalue is real.
DUST = 1e-9


class Track(NamedTuple):
    """What a step leaves: rows are real and imaginary parts, sides are right and left.

    Attributes:
        u: The vectors, not normalised; that of the left side not conjugated, (2, 2, s).
        Au: Their products with A and with its transpose, (2, 2, s).
        residual: Their residuals before the series, (2, 2, s).
        columns: Bases for the next step, (2, s, k).
        gram: All inner products of V, W, AV and AᵀW, float64, (4k, 4k).
        small: What the small space told.
    """

    u: Tensor
    Au: Tensor
    residual: Tensor
    columns: Tensor
    gram: Tensor
    small: Small


def track(A: Tensor, columns: Tensor, lead: Tensor, products: int, terms: int) -> Track:
    r"""Eigenvectors of a matrix that is not far from one whose eigenvectors are known.

    With the columns V and W of both sides after some products with A and :math:`A^\top`, let
    :math:`M = W^\top V` and :math:`N = W^\top A V`. Inverse iteration in this small space,

    .. math:: x \leftarrow ((N - \sigma M)^{-1} M)^8 x, \qquad
              z^\top \leftarrow z^\top (M (N - \sigma M)^{-1})^8,

    starts from the vectors of the last step, and from their quotient
    :math:`\sigma = z^\top N x / z^\top M x`. Each vector, such as :math:`u = V x` with its
    quotient θ and its residual ϱ, is then corrected to

    .. math:: u + \sum_{i<n} \frac{A^i}{\theta^{i+1}} \varrho,

    and the columns of the next step take the correction in. No other eigenvalue is looked at;
    whether one has become larger, :func:`project` and its users tell.

    Note:
        :func:`~.eigenvalue.subspace.follow` takes the part in the space of V out of the
        correction. That needs the inverse of M, which the columns that get random parts make large
        now and then. The residual has no such part to begin with, :math:`W^\top \varrho = 0`, and
        what the products add is of second order.

        Nothing waits for a GPU, and nothing depends on numbers: a step can be recorded in a CUDA
        graph.

    Arguments:
        A: The matrix, in units of the modulus of the eigenvalue, and its transpose, float64,
            (2, s, s).
        columns: Those to start from, float64, (2, s, k).
        lead: The coordinates of the two eigenvectors in these, as rows, float64, (2, 2, k).
        products: How often A is applied to the columns before anything else.
        terms: The number of terms of the series, at least 1.

    Returns:
        The eigenvectors, and all that is known about them.

    Example:
        >>> T = torch.diag(torch.cat((torch.linspace(0.1, 0.5, 99), torch.ones(1)))).double()
        >>> columns = torch.eye(100).double()[:, -8:].flip(1).expand(2, -1, -1)
        >>> lead = torch.zeros(2, 2, 8, dtype=torch.float64)
        >>> lead[:, 0, 0] = 1
        >>> u = track(torch.stack((1.25 * T, 1.25 * T.T)), columns, lead, 3, 4).u
        >>> u[0, 0].abs().argmax()
        tensor(99)
    """
    X = columns
    for _ in range(products):
        X = A @ X
    AX = A @ X
    Y = torch.cat((*X, *AX), 1)
    gram = Y.mT @ Y
    small = (iterate_on_device if A.is_cuda else iterate)(gram, lead, terms)
    u = small.rows @ X.mT
    residual = torch.baddbmm(small.rows @ AX.mT, small.turn.expand(2, -1, -1), u, alpha=-1)
    powers = [residual]
    for _ in range(terms - 1):
        powers.append(powers[-1] @ A.mT)
    step = small.weights.expand(2, -1, -1) @ torch.cat(powers, 1)
    u = u + step
    columns = torch.baddbmm(X, step.mT, small.dual) @ small.basis
    return Track(u, u @ A.mT, residual, columns, gram, small)


def iterate(gram: Tensor, lead: Tensor, terms: int) -> Small:
    """Inverse iteration in the small space."""
    k = lead.shape[-1]
    right, left = slice(k), slice(k, 2 * k)
    blocks = gram[left, : 3 * k].to(torch.complex128)
    M, N = blocks[:, :k], blocks[:, 2 * k :]
    x, z = torch.complex(lead[:, 0], lead[:, 1])
    shift = (1 + SHIFT) * (z @ N @ x) / (z @ M @ x)
    resolvent = torch.linalg.inv_ex(N - shift * M).inverse
    P, Q = resolvent @ M, M @ resolvent
    for _ in range(SQUARINGS):
        P, Q = P @ P, Q @ Q
    both = torch.stack((P @ x, z @ Q))
    both = both / torch.linalg.vector_norm(both, dim=-1, keepdim=True)
    x, z = both
    c = z @ M @ x
    value = (z @ N @ x) / c
    # What gives 1 with x or z and 0 with its mate; a real basis holds both of a pair. Re(δm) has
    # the product of the imaginary parts with a minus: hence the conjugate.
    is_real = value.imag.abs() <= DUST * value.abs()
    dual = torch.stack((z @ M, M @ x)) * (torch.where(is_real, 1.0, 2.0) / c)
    factor, info = torch.linalg.cholesky_ex(torch.stack((gram[right, right], gram[left, left])))
    eye = torch.eye(k, dtype=torch.float64, device=gram.device)
    return Small(
        torch.view_as_real(both).mT.contiguous(),
        torch.view_as_real(dual.conj().resolve_conj()).mT,
        torch.linalg.solve_triangular(factor, eye, upper=False).mT,
        _rotation(value),
        _rotation(value ** torch.arange(-1, -terms - 1, -1, device=gram.device))
        .transpose(0, 1)
        .flatten(1),
        factor,
        (info == 0).to(torch.float64),
    )


def _rotation(value: Tensor) -> Tensor:
    """Multiplication of two rows, real and imaginary part, by complex numbers, (..., 2, 2)."""
    a, b = value.real, value.imag
    return torch.stack((a, -b, b, a), -1).unflatten(-1, (2, 2))


def project(gram: Tensor) -> Projection:
    """What a Rayleigh–Ritz step needs to know, in orthonormal bases, from all inner products.

    Arguments:
        gram: Those of V, W, AV and AᵀW, float64, on the CPU, (4k, 4k).

    Returns:
        The projection; it is not finite if the columns are dependent.
    """
    G, right, left = _blocks(gram), _orthonormal(gram, 0), _orthonormal(gram, 1)
    H, K = right @ G[0, 2] @ right.mT, left @ G[1, 3] @ left.mT
    return Projection(
        H,
        right @ G[2, 2] @ right.mT - H.mT @ H,
        K,
        left @ G[3, 3] @ left.mT - K.mT @ K,
        left @ G[1, 0] @ right.mT,
        left @ G[1, 2] @ right.mT,
    )


def stands_alone(gram: Tensor, theta: complex) -> bool:
    """Whether every other Ritz value, with the largest residual there is, is below |θ| in modulus.

    This is quick, and enough where an eigenvalue is far ahead of the others.

    Arguments:
        gram: All inner products of V, W, AV and AᵀW, float64, on the CPU, (4k, 4k).
        theta: The eigenvalue that is followed, in the units of A.
    """
    G, right = _blocks(gram), _orthonormal(gram, 0)
    H = right @ G[0, 2] @ right.mT
    if not H.isfinite().all():
        return False
    out = float(torch.linalg.eigvalsh(right @ G[2, 2] @ right.mT - H.mT @ H)[-1])
    ritz = torch.linalg.eigvals(H).tolist()
    own = [min(ritz, key=lambda value: abs(value - mate)) for mate in (theta, theta.conjugate())]
    others = [abs(value) for value in ritz if value not in own]
    return max(others, default=0.0) + max(out, 0.0) ** 0.5 < abs(theta)


def _blocks(gram: Tensor) -> Tensor:
    k = len(gram) // 4
    return gram.reshape(4, k, 4, k).transpose(1, 2)


def _orthonormal(gram: Tensor, side: int) -> Tensor:
    """What makes the columns of one side orthonormal, transposed; NaN if they are dependent."""
    G = _blocks(gram)[side, side]
    L, info = torch.linalg.cholesky_ex(G)
    if info:
        return torch.full_like(G, math.nan)
    return torch.linalg.solve_triangular(L, torch.eye(len(G), device=L.device).to(L), upper=False)
