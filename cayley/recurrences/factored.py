"""The Elman recurrence of complex units whose matrix is never formed, but applied by its factors.

Each kind of factors has an operator of its own: :mod:`~cayley.recurrences.composed`,
:mod:`~cayley.recurrences.rotated`.
"""

from collections.abc import Collection
from typing import Protocol

import torch
from torch import Tensor

from cayley.activations import ACTIVATIONS
from cayley.kernels.calls import ElmanGradients, ElmanStates, FactoredCall
from cayley.kernels.operator import Found
from cayley.kernels.projection import check_projection, project, projection_gradients
from cayley.kernels.steps import (
    check_devices,
    check_sequence,
    previous_states,
    rows,
    step_order,
    step_sizes,
)

__all__ = [
    "Factors",
    "as_complex",
    "as_features",
    "check_factored",
    "conjugate",
    "factored_gradient",
    "factored_loop",
    "factored_shapes",
]

_PHI = ACTIVATIONS["modrelu_stacked"]


class Factors(Protocol):
    """The factors of W."""

    def apply(self, h: Tensor) -> Tensor:
        """W h of real features h, (B, 2n)."""
        ...

    def pullback(self, h: Tensor, g: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The gradient of real features h, and those of the factors, from that of W h."""
        ...


def check_factored(call: FactoredCall, n: int, *numbers: Tensor) -> None:
    """Raise unless the arguments of a recurrence of n complex units fit together.

    Arguments:
        call: The call.
        n: The number of units.
        *numbers: The tensors that the factors are made from.
    """
    x, h0, U = call.x, call.h0, call.U
    if h0.shape[-1] != 2 * n or (U is None and x.shape[-1] != 2 * n):
        raise ValueError(
            f"expected x (..., 2n) and h0 (B, 2n) with n = {n}, got {tuple(x.shape)} and "
            f"{tuple(h0.shape)}"
        )
    check_projection(x, U, call.c, 2 * n)
    check_sequence(x, h0, call.batch_sizes)
    check_devices(x, h0, *numbers, call.b, U, call.c)


def factored_loop(call: FactoredCall, factors: Factors) -> ElmanStates:
    """The results of a call by torch operations."""
    x, h0 = project(call.x, call.U, call.c), call.h0
    sizes = step_sizes(x, call.batch_sizes)
    xs = x.reshape(-1, x.shape[-1]).split(sizes)
    hs, zs = list(xs), list(xs)
    h = h0[:0]
    for t in step_order(len(sizes), call.reverse):
        zs[t] = xs[t] + factors.apply(rows(h, h0, sizes[t]))
        h = hs[t] = _PHI.apply(zs[t], call.b)
    return ElmanStates(torch.cat(hs).view_as(x), torch.cat(zs).view_as(x))


def factored_gradient(
    gradients: ElmanGradients,
    states: ElmanStates,
    call: FactoredCall,
    needed: Collection[str],
    factors: Factors,
) -> Found:
    """Gradients by differentiable operations; the factors are applied once more to every state."""
    h, z = states
    sizes = step_sizes(h, call.batch_sizes)
    before = previous_states(h, call.h0, call.batch_sizes, call.reverse)

    def steps(tensor: Tensor) -> tuple[Tensor, ...]:
        return tensor.reshape(-1, h.shape[-1]).split(sizes)

    gs, hs, zs, befores = map(steps, (gradients.h, h, z, before))
    gzs = None if gradients.z is None else steps(gradients.z)
    deltas, ended = list(hs), []
    found: dict[str, Tensor] = {"b": torch.zeros_like(call.b)}
    carry = h.new_zeros(0, h.shape[-1])  # the gradient of the states after this step
    for t in step_order(len(sizes), not call.reverse):
        # Time runs backwards here. Sequences whose first step (in the order of the recurrence) was
        # the one before pass their gradient to h0; those whose last step it is receive none.
        B = min(sizes[t], len(carry))
        ended.append(carry[B:])
        g = torch.cat((gs[t][:B] + carry[:B], gs[t][B:]))
        delta, db = _PHI.pullback(g, hs[t], zs[t], call.b)
        assert db is not None  # modReLU has a threshold
        deltas[t] = delta if gzs is None else delta + gzs[t]
        carry, more = factors.pullback(befores[t], deltas[t])
        for name, value in (more | {"b": db.sum(0)}).items():
            found[name] = found[name] + value if name in found else value
    return {
        "h0": torch.cat((carry, *reversed(ended))),
        **found,
        **projection_gradients(torch.cat(deltas).view_as(h), call.x, call.U, needed),
    }


def factored_shapes(call: FactoredCall) -> ElmanStates:
    """Results of a call of which only the shapes count."""
    shape = (*call.x.shape[:-1], call.h0.shape[-1])
    return ElmanStates(call.x.new_empty(shape), call.x.new_empty(shape))


def as_features(h: Tensor) -> Tensor:
    """Complex numbers as real features, (..., n) ↦ (..., 2n)."""
    return torch.cat((h.real, h.imag), -1)


def as_complex(h: Tensor) -> Tensor:
    """Real features as complex numbers, (..., 2n) ↦ (..., n)."""
    return torch.complex(*h.chunk(2, -1))


def conjugate(z: Tensor) -> Tensor:
    """Conjugates, not as a view, whose sign is lost in an operator under torch.compile."""
    return torch.complex(z.real, -z.imag)
