"""What every rule has in common."""

import copy
import pickle
from typing import Any, ClassVar

import pytest
import torch
from preconditioners.explicit import backward, gradients, preconditioned
from torch import nn

from cayley.preconditioners import BNP, Bias, Block, Layout, Observation, Rows, Rule, Weight
from cayley.preconditioners.rule import Hook, reached, recording


@pytest.mark.parametrize("features", [1, 5, 40, 10_000])
def test_reached_rows(features: int) -> None:
    grad = torch.zeros(4, 3, features)
    grad[1, 2, -1] = 1e-300
    grad[3, 0, 0] = float("nan")
    grad[0, 1, features // 2] = -2.0
    expected = torch.zeros(4, 3, dtype=torch.bool)
    expected[1, 2] = expected[3, 0] = expected[0, 1] = True
    assert torch.equal(reached(grad), expected)
    assert reached(torch.ones(4, features)).all()


def test_passes_are_recorded_only_where_gradients_are() -> None:
    x = torch.ones(2)
    assert recording(x)
    with torch.no_grad():
        assert not recording(x)
    with torch.inference_mode():
        assert not recording(x)
    assert not recording(torch.ones(2, device="meta"))
    assert not torch.func.vmap(lambda x: x + recording(x))(torch.zeros(2)).any()


def test_hooks_are_dead_in_copies() -> None:
    calls: list[int] = []
    hook = Hook(calls.append)
    hook(1)
    copy.deepcopy(hook)(2)
    pickle.loads(pickle.dumps(hook))(3)
    assert calls == [1]


class Scaled(nn.Module):
    """A layer of one's own, a = s (W x) + b."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix, self.shift = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * (x @ self.matrix.T) + self.shift


class ScaledRule(Rule):
    name = "Scaled"
    types: ClassVar[tuple[type[nn.Module], ...]] = (Scaled,)

    def layout(self, module: nn.Module) -> Layout:
        return Layout((Block((Weight("matrix", "twice"),), (Bias("shift"),)),))

    def observe(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Observation:
        x = args[0].detach()
        return Observation((output,), lambda grads: {"twice": Rows(2 * x, reached(grads[0]))})


def test_a_rule_of_ones_own() -> None:
    layer, x = Scaled(), torch.randn(9, 4) + 1
    bnp = BNP(layer, eps=0.1, rules=[ScaledRule()])
    backward(layer(x))
    before = gradients(layer)
    bnp.step()
    b, (W,) = preconditioned(before["shift"], [before["matrix"]], [2 * x], 0.1)
    torch.testing.assert_close(layer.matrix.grad, W)
    torch.testing.assert_close(layer.shift.grad, b)


def test_a_subclass_with_a_forward_of_its_own_is_not_served() -> None:
    class Other(Scaled):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.matrix.T

    class Same(Scaled):
        pass

    assert ScaledRule().serves(Same())
    assert not ScaledRule().serves(Other())
    model = nn.Sequential(Same(), Other())
    report = BNP(model, rules=[ScaledRule()]).report()
    assert report["1.matrix"] == "Other has a forward of its own"
