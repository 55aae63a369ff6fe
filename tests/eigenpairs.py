"""What the kernels that follow an eigenpair compute, in torch: for tests without a GPU."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from cayley.kernels.cuda.eigenpair import InverseIteration
from cayley.parametrizations.eigenvalue import tracker
from cayley.parametrizations.eigenvalue.dominant import Event
from cayley.parametrizations.eigenvalue.tracker import ROUGH, Status

__all__ = ["crowd", "inverse_iteration", "on_cpu", "rotation", "write_answer"]

# As in pencil.cu: how often the matrix of the inverse iteration is squared, how much its shift is
# off the estimate, lest it be singular, and the relative imaginary part of what counts as real.
SQUARINGS = 3
SHIFT = 1e-6
DUST = 1e-9


def on_cpu(patch: pytest.MonkeyPatch) -> None:
    """Let trackers take these in the place of kernels."""
    patch.setattr(tracker, "inverse_iteration", inverse_iteration)
    patch.setattr(tracker, "write_answer", write_answer)


def rotation(radius: float, angle: float) -> Tensor:
    """A matrix with the eigenvalues radius · e^{± i angle}."""
    cos, sin = math.cos(angle), math.sin(angle)
    return radius * torch.tensor([[cos, -sin], [sin, cos]])


def crowd(s: int, steps: int) -> Iterator[Tensor]:
    """Matrices with many eigenvalues of almost the same modulus, each far from the one before."""
    angles, radii = math.pi * torch.rand(s // 2), torch.linspace(1.05, 0.9, s // 2)
    parts = torch.polar(radii, angles)
    T = torch.block_diag(*torch.view_as_real(torch.stack((parts, 1j * parts), -1)).mT)
    for _ in range(steps):
        yield T.float().double()
        T = T + 0.05 * torch.randn(s, s) / s**0.5


def inverse_iteration(gram: Tensor, lead: Tensor, terms: int) -> InverseIteration:
    """Inverse iteration in the space of the columns; src/pencil.cu."""
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
    eye = torch.eye(k, dtype=torch.float64)
    return InverseIteration(
        torch.view_as_real(both).mT.contiguous(),
        torch.view_as_real(dual.conj().resolve_conj()).mT,
        torch.linalg.solve_triangular(factor, eye, upper=False).mT,
        _rotation(value),
        _rotation(value ** torch.arange(-1, -terms - 1, -1)).transpose(0, 1).flatten(1),
        factor,
        (info == 0).to(torch.float64),
    )


def _rotation(value: Tensor) -> Tensor:
    """Multiplication of two rows, real and imaginary part, by complex numbers, (..., 2, 2)."""
    a, b = value.real, value.imag
    return torch.stack((a, -b, b, a), -1).unflatten(-1, (2, 2))


def write_answer(
    vectors: Tensor,
    Avectors: Tensor,
    residual: Tensor,
    found: InverseIteration,
    state: Sequence[Tensor],
    terms: int,
    eps: float,
) -> None:
    """Write what a step has found; src/quotient.cu."""
    status, lead, latched, counts, answer, ok = state
    scale = torch.linalg.vector_norm(status[:2])
    u, w = torch.complex(vectors[:, 0], vectors[:, 1])
    Au, wA = torch.complex(Avectors[:, 0], Avectors[:, 1])
    norms = torch.linalg.matrix_norm(vectors)
    c = w @ u
    theta = (w @ Au) / c
    rest = torch.stack((Au - theta * u, wA - theta * w))
    residuals = torch.linalg.vector_norm(rest, dim=-1) / norms / theta.abs()
    rho = scale * theta.abs()
    ok.copy_((found.sound == 1).all() & (residuals < ROUGH).all() & (rho > 0))
    latched.logical_or_(ok & (rho > 1))
    denominator = torch.where(latched, torch.where(ok, rho, scale) + eps, 1.0)
    factor = (theta / theta.abs()).conj() / (c * denominator)
    f = torch.where(latched, -(factor * w), 0)
    rows = torch.stack((f.real, -f.imag, u.real, u.imag))
    answer.copy_(torch.cat((torch.where(ok, rows, 0.0).flatten(), denominator[None])))
    lead.copy_(torch.where(ok, found.rows @ found.factor, lead))
    counts[Event.FOLLOWED] += 1
    fields: dict[str, Any] = {
        "real": torch.where(ok, scale * theta.real, status[0]),
        "imag": torch.where(ok, scale * theta.imag, status[1]),
        "r_u": residuals[0],
        "r_v": residuals[1],
        "start": (torch.linalg.matrix_norm(residual) / norms).max(),
        "overlap": c.abs() / norms.prod(),
        "scale": scale,
        "seen": counts.sum(),
        "latched": latched,
        "terms": terms,
    }
    for name, value in fields.items():
        status[Status._fields.index(name)] = torch.as_tensor(value).double()
