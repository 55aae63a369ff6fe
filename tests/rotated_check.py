"""The recurrence by layers of rotations by its kernels, against a loop in double precision."""

import math
from typing import Any

import torch
from torch import Tensor

from cayley.kernels.calls import ElmanGradients, RotatedCall
from cayley.kernels.cuda.rotated import rotated, rotated_backward
from cayley.kernels.rotations import FFT, find_pattern
from cayley.recurrences import rotated_loop

__all__ = ["NAMES", "check", "example", "rounded"]

NAMES = ("x", "h0", "theta", "phi", "omega", "b")


def example(
    n: int,
    layers: int = FFT,
    T: int = 4,
    B: int = 3,
    sizes: Tensor | None = None,
    inputs: int = 0,
    **options: Any,
) -> RotatedCall:
    """A random call, as float32 holds it."""
    steps = (T, B) if sizes is None else (int(sizes.sum()),)
    m = sum(layer.rotations for layer in find_pattern(n, layers))
    tensors: dict[str, Any] = {
        "x": torch.randn(*steps, inputs or 2 * n),
        "h0": torch.randn(B, 2 * n),
        **{name: math.pi * (2 * torch.rand(m) - 1) for name in ("theta", "phi")},
        "omega": math.pi * (2 * torch.rand(n) - 1),
        "b": -0.3 * torch.rand(n),
    }
    if inputs:
        tensors |= {"U": torch.randn(2 * n, inputs), "c": torch.randn(2 * n)}
    tensors = {name: tensor.float().double() for name, tensor in tensors.items()}
    return RotatedCall(**tensors, batch_sizes=sizes, layers=layers, **options)


def given(call: RotatedCall) -> dict[str, Any]:
    """The arguments that have gradients."""
    names = (*NAMES, "U", "c")
    return {name: getattr(call, name) for name in names if getattr(call, name) is not None}


def rounded(call: RotatedCall, device: str = "cpu") -> RotatedCall:
    """The call for the kernels, on a device."""
    tensors: dict[str, Any] = {
        name: tensor.detach().float().to(device) for name, tensor in given(call).items()
    }
    return call._replace(**tensors)


def check(call: RotatedCall, device: str = "cpu") -> None:
    """States and all gradients."""
    leaves: dict[str, Any] = {
        name: leaf.to(device).requires_grad_() for name, leaf in given(call).items()
    }
    call = call._replace(**leaves)
    *tensors, U, c, batch_sizes, layers, reverse = call
    h = rotated_loop(*tensors, layers=layers, U=U, c=c, batch_sizes=batch_sizes, reverse=reverse)
    g = torch.randn(h.shape).float().to(device)
    gradients = torch.autograd.grad(h, [*leaves.values()], g.double(), allow_unused=True)
    theirs = dict(zip(leaves, gradients, strict=True))
    call = rounded(call, device)
    states = rotated(call)
    found = rotated_backward(ElmanGradients(g), states, call, [*leaves])
    for name, one, other in [
        ("h", states.h, h.detach()),
        *((name, found[name], theirs[name]) for name in leaves),
    ]:
        assert one is not None
        if other is None:  # without layers there are no angles
            assert one.numel() == 0
            continue
        assert one.shape == other.shape
        error = (one.double() - other).norm() / other.norm().clamp(min=1.0)
        assert error <= 2e-6, f"{name} is off by {error:.1g}"
