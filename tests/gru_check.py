"""The gated recurrence of emulated kernels, against the loop in double precision."""

from typing import Any

import torch
from torch import Tensor

from cayley.kernels.calls import GruCall, GruGradients
from cayley.kernels.cuda import gru
from cayley.recurrences import gru_loop

__all__ = ["check"]


def check(
    T: int, B: int, H: int, candidate: str, reverse: bool = False, sizes: Tensor | None = None
) -> None:
    """States and every gradient, as float32 holds the arguments."""
    shape = (T, B) if sizes is None else (int(sizes.sum()),)
    W = torch.cat([torch.linalg.qr(torch.randn(H, H))[0] for _ in range(3)])
    point = [torch.randn(*shape, 3 * H), torch.randn(B, H), W]
    if candidate == "modrelu":
        point.append(-0.3 * torch.rand(H))
    leaves = [v.float().double().requires_grad_() for v in point]
    g = torch.randn(*shape, H).float()
    h = gru_loop(*leaves, batch_sizes=sizes, reverse=reverse)
    theirs = [h.detach(), *torch.autograd.grad(h, leaves, g.double())]
    x, h0, W, *b = (v.detach().float() for v in leaves)
    call = GruCall(x, h0, W, b[0] if b else None, batch_sizes=sizes, reverse=reverse)
    needed = ["x", "h0", "W", *("b" for _ in b)]
    states = gru.gru(call)
    found: Any = gru.gru_backward(GruGradients(g), states, call, needed)
    ours = [states.h, *(found[name] for name in needed)]
    for name, one, other in zip(("h", *needed), ours, theirs, strict=True):
        error = (one.double() - other).norm() / other.norm().clamp(min=1)
        assert error <= 2e-6, f"{name} is off by {error:.1g}"
