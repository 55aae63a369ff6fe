"""The gated recurrence step by step, emulated on the CPU, against the loop in double precision."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from emulator import COMPILER, emulated
from teams import fill_new_memory, force_steps, force_team
from torch import Tensor

from cayley.kernels.calls import GruCall, GruGradients
from cayley.kernels.cuda import gru
from cayley.kernels.cuda.runtime import step_kernels
from cayley.recurrences import gru_loop

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="no g++ on Linux"),
    pytest.mark.slow,
]
PACKED = torch.tensor([5, 4, 4, 2, 1, 1])


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    fill_new_memory(monkeypatch)
    with emulated():
        yield


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


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("candidate", ["modrelu", "tanh"])
@pytest.mark.parametrize("sizes", [None, PACKED, torch.tensor([1, 1])], ids=str)
def test_the_loop(
    sizes: Tensor | None, candidate: str, reverse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    force_steps(monkeypatch)
    T, B = (6, 5) if sizes is None else (len(sizes), int(sizes[0]))
    check(T, B, 21, candidate, reverse, sizes)


@pytest.mark.parametrize("size", [(1, 1), (1, 5), (4, 1)], ids=str)
def test_a_single_step_or_row(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    force_steps(monkeypatch)
    check(*size, 21, "modrelu")


def test_units_that_threads_share_unevenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_kernels, "MOST_THREADS", 32)
    monkeypatch.setattr(step_kernels, "UNITS", 30)
    monkeypatch.setattr(step_kernels, "PARTS", 2)
    force_steps(monkeypatch)
    check(3, 2, 75, "modrelu")


@pytest.mark.parametrize("first", [True, False])
def test_one_plan_reads_what_the_other_has_written(
    first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    force_team(monkeypatch, (2, 2, 128, 4))
    # the recurrence asks once, and its gradient once
    answers = iter((first, not first))
    monkeypatch.setattr(gru, "runs_stepwise", lambda *_: next(answers))
    check(6, 5, 21, "modrelu", sizes=PACKED)
    assert next(answers, None) is None
