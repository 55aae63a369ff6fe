"""The node of autograd, with kernels that are emulated on the CPU, against the loop."""

import sys
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import pytest
import torch
from emulator import COMPILER, emulated
from gradients import grad_of
from torch import Tensor

from cayley.kernels.calls import LstmCall, Site
from cayley.kernels.cuda.lstm import node
from cayley.kernels.operator import Operator
from cayley.recurrences import NormSite, lstm_loop

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="no g++ on Linux"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="where there is a GPU, autograd asks it"),
    pytest.mark.slow,
]

T, B, H, WINDOW = 4, 3, 5, 3
NAMES = ("input", "recurrent", "cell")


class Norms(NamedTuple):
    """What is normalised, and over what."""

    names: tuple[str, ...]
    over: Literal["layer", "batch"] = "layer"

    @property
    def options(self) -> dict[str, Any]:
        return {"window": WINDOW if self.names else 1}


SOME = {
    "none": Norms(()),
    "recurrent": Norms(("recurrent",)),
    "all": Norms(NAMES),
    "input over the batch": Norms(("input",), "batch"),
    "recurrent over the batch": Norms(("recurrent",), "batch"),
    "cell over the batch": Norms(("cell",), "batch"),
    "all over the batch": Norms(NAMES, "batch"),
}
norms = pytest.mark.parametrize("norms", SOME.values(), ids=SOME)


@pytest.fixture(autouse=True)
def on_the_cpu() -> Iterator[None]:
    with emulated():
        yield


def leaves_of(norms: Norms) -> dict[str, Tensor]:
    F = 4 * H
    tensors = {"x": torch.randn(T, B, 2), "h0": torch.randn(B, H), "c0": torch.randn(B, H)}
    tensors |= {"W": torch.randn(F, H) / 2, "b": torch.randn(F)}
    tensors |= {"U": torch.randn(F, 2), "c": torch.randn(F)}
    for name in norms.names:
        features = H if name == "cell" else F
        tensors |= {f"{name} gamma": torch.rand(features), f"{name} beta": torch.randn(features)}
    return {name: tensor.float().requires_grad_() for name, tensor in tensors.items()}


def by_node(leaves: dict[str, Tensor], norms: Norms) -> Tensor:
    operator: Operator = sys.modules["cayley.recurrences.lstm"]._lstm
    sites: dict[str, Any] = {
        name: Site(leaves[f"{name} gamma"], leaves[f"{name} beta"]) for name in norms.names
    }
    plain: dict[str, Any] = {name: leaves[name] for name in ("x", "h0", "c0", "W", "b", "U")}
    call = LstmCall(**plain, **sites, **norms.options, over_batch=norms.over == "batch")
    states, references = node.lstm_node(call, leaves["c"], operator)
    assert [reference is None for reference in references] == [not norms.names] * 3
    return states.h


def by_loop(leaves: dict[str, Tensor], norms: Norms) -> Tensor:
    sites: dict[str, Any] = {
        name: NormSite(leaves[f"{name} gamma"], leaves[f"{name} beta"]) for name in norms.names
    }
    plain: dict[str, Any] = {name: leaves[name] for name in ("x", "h0", "c0", "W", "b", "U", "c")}
    return lstm_loop(**plain, **sites, **norms.options, over=norms.over).h


def compare(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...], error: float) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert (one - other).norm() <= error * other.norm().clamp(min=1)


def doubled(leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: v.detach().double().requires_grad_() for name, v in leaves.items()}


@norms
def test_gradients(norms: Norms) -> None:
    leaves = leaves_of(norms)
    exact = doubled(leaves)
    h, expected = by_node(leaves, norms), by_loop(exact, norms)
    compare((h,), (expected,), 1e-5)
    theirs = torch.autograd.grad(expected.square().sum(), [*exact.values()])
    compare(torch.autograd.grad(h.square().sum(), [*leaves.values()]), theirs, 1e-4)
    for (name, leaf), gradient in zip(exact.items(), theirs, strict=True):
        alone = {k: v.detach().requires_grad_(k == name) for k, v in leaves.items()}
        found = torch.autograd.grad(by_node(alone, norms).square().sum(), alone[name])
        assert found[0].shape == leaf.shape
        compare(found, (gradient,), 1e-4)


@norms
def test_a_gradient_can_be_differentiated_again(norms: Norms) -> None:
    leaves = leaves_of(norms)

    def second(run: Callable, leaves: dict[str, Tensor]) -> tuple[Tensor, ...]:
        loss = run(leaves, norms).square().sum()
        first = torch.autograd.grad(loss, [*leaves.values()], create_graph=True)
        return torch.autograd.grad([g.square().sum() for g in first], [*leaves.values()])

    compare(second(by_node, leaves), second(by_loop, doubled(leaves)), 1e-3)


# torch hides this one by not showing it, which does not help where warnings are errors
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@norms
def test_compiled_autograd_sees_one_operator(norms: Norms) -> None:
    leaves = leaves_of(norms)
    theirs = torch.autograd.grad(by_node(leaves, norms).square().sum(), [*leaves.values()])
    seen = []

    def compiler(graph: Any) -> Any:
        return torch.compile(graph, backend=backend, fullgraph=True)

    def backend(graph: Any, _: Any) -> Callable:
        seen.extend(str(node.target) for node in graph.graph.nodes if "cayley" in str(node.target))
        return graph.forward

    torch._dynamo.reset()  # a graph of the same shape would be compiled for another test
    with torch._dynamo.compiled_autograd._enable(compiler):
        by_node(leaves, norms).square().sum().backward()
    # with or without the overload, as torch's version has it
    assert [name.removesuffix(".default") for name in seen] == ["cayley.lstm_backward"]
    compare(tuple(grad_of(leaf) for leaf in leaves.values()), theirs, 1e-4)


@norms
def test_observers_are_told_of_an_equal_call(norms: Norms) -> None:
    """That of the operator, which has no U beside normalisations, and references of their own."""
    module, leaves = sys.modules["cayley.recurrences.lstm"], leaves_of(norms)
    sites: dict[str, Any] = {
        name: Site(leaves[f"{name} gamma"], leaves[f"{name} beta"]) for name in norms.names
    }
    plain: dict[str, Any] = {name: leaves[name] for name in ("x", "h0", "c0", "W", "b", "U")}
    call = LstmCall(**plain, **sites, **norms.options, over_batch=norms.over == "batch")
    states, references = node.lstm_node(call, leaves["c"], module._lstm)
    told = module._as_operator(call, leaves["c"], references)
    again = module._lstm(told)
    torch.testing.assert_close(again.h, states.h, rtol=1e-4, atol=1e-5)
    for name in norms.names:
        found, expected = getattr(again, name), getattr(states, name)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
