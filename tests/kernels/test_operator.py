"""An operator made by the factory: its kernels, its gradient, and who sees what."""

from collections.abc import Collection
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck

import cayley
from cayley.kernels.operator import Kernels, Operator


class Pair(NamedTuple):
    """Two tensors that come together."""

    a: Tensor
    b: Tensor | None = None


class Call(NamedTuple):
    """x² a + b, times a number."""

    x: Tensor
    U: Tensor | None = None
    pair: Pair | None = None
    times: float = 1.0


class Result(NamedTuple):
    """With something empty, as an operator gives that has nothing to keep."""

    y: Tensor
    rest: Tensor


class Gradient(NamedTuple):
    """Those with respect to the results."""

    y: Tensor
    rest: Tensor | None = None


def loop(call: Call) -> Result:
    y = call.x * call.x
    if call.pair is not None:
        y = y * call.pair.a
        if call.pair.b is not None:
            y = y + call.pair.b
    return Result(call.times * y, y.new_empty(0))


def gradient(gradients: Gradient, states: Result, call: Call, needed: Collection[str]) -> dict:
    g, pair = call.times * gradients.y, call.pair
    found = {"x": 2 * call.x * (g if pair is None else g * pair.a)}
    if pair is not None:
        found |= {"pair_a": g * call.x * call.x, "pair_b": g}
    return found


SEEN: list[str] = []


def kernel(call: Call) -> Result:
    SEEN.append("forward")
    return loop(call)


def kernel_backward(*arguments: Any) -> dict:
    SEEN.append("backward")
    return gradient(*arguments)


def refusal(call: Call, gradients: Gradient | None = None) -> str | None:
    return "it takes no 13" if call.times == 13 else None


square = Operator(
    "test_square",
    call=Call,
    states=Result,
    gradients=Gradient,
    loop=loop,
    gradient=gradient,
    shapes=lambda call: Result(torch.empty_like(call.x), call.x.new_empty(0)),
    kernels={"cpu": Kernels(refusal, kernel, kernel_backward)},
    constants=("U",),
)


@pytest.fixture(autouse=True)
def forget() -> None:
    SEEN.clear()


def calls() -> list[Call]:
    x, a, b = (torch.randn(3, requires_grad=True) for _ in range(3))
    return [Call(x), Call(x, pair=Pair(a), times=2.0), Call(x, pair=Pair(a, b), times=3.0)]


def test_runs_the_kernel_with_its_gradient() -> None:
    for call in calls():
        SEEN.clear()
        leaves = [v for v in square.fields.flatten(call) if isinstance(v, Tensor)]
        y, expected = square(call).y, loop(call).y
        assert torch.equal(y, expected)
        torch.testing.assert_close(
            torch.autograd.grad(y.sum(), leaves), torch.autograd.grad(expected.sum(), leaves)
        )
        assert SEEN == ["forward", "backward"]


def test_the_back_end_of_the_forward_pass_computes_the_gradient() -> None:
    call = calls()[0]
    with cayley.backend("reference"):
        y = square(call).y
    y.sum().backward()
    assert SEEN == []


def test_what_a_kernel_refuses() -> None:
    call = calls()[0]._replace(times=13.0)
    with cayley.backend("cpu"), pytest.raises(NotImplementedError, match="it takes no 13"):
        square(call)
    with pytest.warns(UserWarning, match="it takes no 13"):
        assert torch.equal(square(call).y, loop(call).y)
    assert SEEN == []


def test_derivatives_of_derivatives() -> None:
    call = calls()[2]
    assert call.pair is not None

    def run(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return square(Call(x, pair=Pair(a, b), times=2.0)).y

    point: Any = (call.x, *call.pair)
    assert gradcheck(run, point)
    assert gradgradcheck(run, point)


def test_operators_are_registered_soundly() -> None:
    for call in calls():
        arguments = (*square.fields.flatten(call), "auto")
        torch.library.opcheck(torch.ops.cayley.test_square.default, arguments)
        needs = [v is not None for v in (call.x, *(call.pair or (None, None)))]
        values = [v.detach() if isinstance(v, Tensor) else v for v in arguments]
        y, rest = call.x.detach(), call.x.detach().new_empty(0)
        torch.library.opcheck(
            torch.ops.cayley.test_square_backward.default,
            (y, None, y, rest, *values[:-1], needs, "auto"),
            test_utils=["test_schema", "test_faketensor"],
        )


def test_tracers_see_the_operator() -> None:
    with FakeTensorMode():
        y = square(Call(torch.ones(3, requires_grad=True))).y
    assert y.shape == (3,)
    assert SEEN == []

    seen: list[str] = []

    def look(module: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        seen.extend(str(node.target) for node in module.graph.nodes)
        return module

    call = calls()[2]
    compiled = torch.compile(lambda call: square(call).y, backend=look, fullgraph=True)(call)
    torch.testing.assert_close(compiled, loop(call).y)
    assert any("test_square" in target for target in seen)


def test_transforms_see_the_loop() -> None:
    x = torch.randn(4, 3)
    found = torch.func.vmap(lambda x: square(Call(x, times=2.0)).y)(x)
    torch.testing.assert_close(found, 2 * x * x)
    slope = torch.func.grad(lambda x: square(Call(x)).y.sum())(x)
    torch.testing.assert_close(slope, 2 * x)
    assert SEEN == []
