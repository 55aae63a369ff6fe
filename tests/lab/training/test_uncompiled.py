"""Optimizers of the laboratory step as those of torch do, and runs import no compiler."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import run_after_torch
from torch import nn
from torch.optim import Optimizer

import cayley
from cayley.lab.training.optimizers import UNUSABLE
from cayley.lab.training.uncompiled import uncompiled

KINDS = {
    name: kind
    for place in (cayley.optim, torch.optim)
    for name, kind in vars(place).items()
    if isinstance(kind, type) and issubclass(kind, Optimizer)
    if name not in {*UNUSABLE, "Optimizer", "Optimizers"}
}


def take_steps(kind: type[Any], state: dict[str, Any] | None = None) -> tuple[Any, Any]:
    """A parameter after some steps, and the state of the optimizer."""
    generator = torch.Generator().manual_seed(1)
    p = nn.Parameter(torch.eye(4))
    optimizer = kind([{"params": [p], "name": "own"}], lr=0.01)
    if state is not None:
        optimizer.load_state_dict(copy.deepcopy(state))
    for _ in range(3):
        optimizer.zero_grad()
        assert p.grad is None
        (p * torch.randn(4, 4, generator=generator)).sum().backward()
        optimizer.step()
    assert p.is_leaf
    return p.detach(), optimizer.state_dict()


@pytest.mark.parametrize("name", sorted(KINDS))
def test_the_same_steps(name: str) -> None:
    kind = KINDS[name]
    expected, state = take_steps(kind)
    found, own = take_steps(uncompiled(kind))
    assert found.equal(expected)
    assert own["param_groups"] == state["param_groups"]
    torch.testing.assert_close(own["state"], state["state"], rtol=0, atol=0)
    # and from a state of the other
    again = take_steps(uncompiled(kind), state)[0]
    assert again.equal(take_steps(kind, own)[0])


def test_hooks_and_copies() -> None:
    p = nn.Parameter(torch.ones(2))
    optimizer = uncompiled(torch.optim.SGD)([p], lr=1.0)
    called = []
    optimizer.register_step_post_hook(lambda *_: called.append("step"))
    p.sum().backward()
    optimizer.step()
    assert called == ["step"]
    assert p.tolist() == [0, 0]
    assert type(copy.deepcopy(optimizer)) is type(optimizer) is uncompiled(torch.optim.SGD)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_run_imports_little(device: str, tmp_path: Path) -> None:
    """Of seconds that its start takes, most are imports."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    words = ["train", "quickstart", "-q", "-o", str(tmp_path), "--device", device]
    words += ["--tiny", "--set", "training.steps=2"]
    run_after_torch(
        "import sys\n"
        "from cayley.cli import main\n"
        f"assert main({words}) == 0\n"
        "heavy = {'lightning_fabric', 'matplotlib', 'optuna', 'rich', 'scipy', 'sympy',\n"
        "  'tensorboard', 'torch._dynamo', 'torch._inductor', 'torch_geometric', 'torchmetrics'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
