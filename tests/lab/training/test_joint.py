"""Optimizers of several networks as one: the same steps, and the states stay where they were."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, Optimizer, RMSprop
from torch.optim.lr_scheduler import ExponentialLR

import cayley
from cayley.lab.training.joint import joined, step_as_one, step_together

Make = Callable[[list[Any]], Optimizer]
MAKERS: dict[str, Make] = {
    "Adam": lambda groups: Adam(groups, lr=1e-2, amsgrad=True),
    "Adagrad": lambda groups: Adagrad(groups, lr=1e-2),
    "RMSprop": lambda groups: RMSprop(groups, lr=1e-2, momentum=0.9),
    "SGD": lambda groups: SGD(groups, lr=1e-2),
    "RMSpropTF": lambda groups: cayley.optim.RMSpropTF(groups, momentum=0.9, centered=True),
    "AdagradTF": lambda groups: cayley.optim.AdagradTF(groups),
}


def optimizers(make: Make) -> list[Optimizer]:
    """Three with two groups each, of which the last has another rate."""
    torch.manual_seed(1)
    found = []
    for lr in (1e-2, 1e-2, 1e-3):
        first, second, third = (nn.Parameter(torch.randn(n)) for n in (3, 2, 4))
        found.append(make([{"params": [first, second], "lr": lr}, {"params": [third]}]))
    return found


def parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_equals_separate_steps(make: Make) -> None:
    """Also where a parameter has no gradient, and one of the networks a schedule."""
    ours, theirs = optimizers(make), optimizers(make)
    for some in (ours, theirs):
        ExponentialLR(some[1], 0.5)
    for _ in range(3):
        for one, other in zip(ours, theirs, strict=True):
            for p, q in zip(parameters(one), parameters(other), strict=True):
                p.grad = torch.randn_like(p)
                q.grad = p.grad.clone()
            parameters(one)[1].grad = parameters(other)[1].grad = None
        whole = joined(type(ours[0]), ours)
        assert len(whole.param_groups) < sum(len(one.param_groups) for one in ours)
        step_as_one(type(ours[0]), ours)
        for other in theirs:
            other.step()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(parameters(one), parameters(other))
        torch.testing.assert_close(one.state_dict(), other.state_dict())


def test_on_a_cpu_each_steps_for_itself() -> None:
    ours = optimizers(MAKERS["Adam"])
    seen = []
    for one in ours:
        one.register_step_post_hook(lambda optimizer, *_: seen.append(optimizer))
    step_together(ours)
    assert seen == ours


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_with_a_schedule() -> None:
    """Which warns if it sees no step, and warnings are errors."""
    weights = [nn.Parameter(torch.ones(2, device="cuda")) for _ in range(3)]
    own = [Adam([weight], lr=0.5) for weight in weights]
    schedules = [ExponentialLR(one, 0.5) for one in own]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    step_together(own)
    for schedule in schedules:
        schedule.step()
    assert all(0.4 < weight[0] < 0.6 for weight in weights)
