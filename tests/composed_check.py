"""The recurrence of a composed matrix by its kernels, against a loop in double precision."""

import math
from typing import Any

import torch
from torch import Tensor

from cayley.kernels.calls import ComposedCall, ElmanGradients
from cayley.kernels.cuda.composed import composed, composed_backward
from cayley.parametrizations.householder import unit
from cayley.recurrences import composed_loop

__all__ = ["NAMES", "check", "example", "rounded"]

NAMES = ("x", "h0", "w", "v", "b")


def example(
    n: int, T: int = 4, B: int = 3, sizes: Tensor | None = None, inputs: int = 0, **options: Any
) -> ComposedCall:
    """A random call, as float32 holds it."""
    steps = (T, B) if sizes is None else (int(sizes.sum()),)
    tensors: dict[str, Any] = {
        "x": torch.randn(*steps, inputs or 2 * n),
        "h0": torch.randn(B, 2 * n),
        "w": math.pi * (2 * torch.rand(3, n) - 1),
        # not short by chance: their gradients grow as the inverse of their lengths
        "v": (2 * n) ** 0.5 * unit(torch.randn(2, 2, n), (-2, -1)),
        "b": -0.3 * torch.rand(n),
    }
    if inputs:
        tensors |= {"U": torch.randn(2 * n, inputs), "c": torch.randn(2 * n)}
    tensors = {name: tensor.float().double() for name, tensor in tensors.items()}
    return ComposedCall(**tensors, permutation=torch.randperm(n), batch_sizes=sizes, **options)


def given(call: ComposedCall) -> dict[str, Any]:
    """The arguments that have gradients."""
    names = (*NAMES, "U", "c")
    return {name: getattr(call, name) for name in names if getattr(call, name) is not None}


def rounded(call: ComposedCall, device: str = "cpu") -> ComposedCall:
    """The call for the kernels, on a device."""
    tensors: dict[str, Any] = {
        name: tensor.detach().float().to(device) for name, tensor in given(call).items()
    }
    return call._replace(**tensors, permutation=call.permutation.to(device))


def check(call: ComposedCall, device: str = "cpu") -> None:
    """States and all gradients."""
    call = call._replace(permutation=call.permutation.to(device))
    leaves: dict[str, Any] = {
        name: leaf.to(device).requires_grad_() for name, leaf in given(call).items()
    }
    call, names = call._replace(**leaves), [*leaves]
    *tensors, U, c, batch_sizes, reverse = call
    h = composed_loop(*tensors, U=U, c=c, batch_sizes=batch_sizes, reverse=reverse)
    g = torch.randn(h.shape).float().to(device)
    theirs = [h.detach(), *torch.autograd.grad(h, [*leaves.values()], g.double())]
    call = rounded(call, device)
    states = composed(call)
    found = composed_backward(ElmanGradients(g), states, call, names)
    # Of one unit, each gradient is a single sum, of which rounding is all that is left if its terms
    # cancel: those of v always do, since a reflection of one unit is −1 for every v.
    one_unit, terms = call.b.shape == (1,), float(g.norm() * h.detach().norm())
    least = dict.fromkeys(("w", "v", "b"), terms) if one_unit else {}
    for name, one, other in zip(
        ("h", *names), (states.h, *(found[name] for name in names)), theirs, strict=True
    ):
        assert one is not None
        error = (one.double() - other).norm() / other.norm().clamp(min=least.get(name, 1.0))
        assert error <= 2e-6, f"{name} is off by {error:.1g}"
