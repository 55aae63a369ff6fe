"""What is pooled between two steps."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from gradients import grad_of
from torch import Tensor, nn

from cayley.preconditioners.collector import MANY, SMALL, Collector
from cayley.preconditioners.rule import Observation, Rows, reached


def multiply(collector: Collector, x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    collector.record(Observation([y], lambda grads: {"x": Rows(x, reached(grads[0]))}))
    return y


def _to_none(w: Tensor) -> None:
    w.grad = None


def _to_zero(w: Tensor) -> None:
    grad_of(w).zero_()


def test_many_small_rows_are_reduced_in_bunches() -> None:
    w = torch.ones(2, requires_grad=True)
    collector = Collector(lambda: [w])
    x = torch.randn(3 * MANY + 5, 4, 2)
    torch.stack([multiply(collector, x_t, w) for x_t in x]).sum().backward()
    taken = collector.take()["x"]
    assert taken.n == x[..., 0].numel()
    torch.testing.assert_close(taken.mean, x.mean((0, 1)))
    torch.testing.assert_close(taken.variance, x.flatten(0, 1).var(0, correction=0))


def test_large_rows_are_reduced_at_once() -> None:
    w = torch.ones(2, requires_grad=True)
    collector = Collector(lambda: [w])
    x = torch.randn(SMALL, 2)
    multiply(collector, x, w).sum().backward()
    torch.testing.assert_close(collector.take()["x"].mean, x.mean(0))


def test_backward_passes_are_pooled_while_there_are_gradients() -> None:
    w = nn.Parameter(torch.ones(2))
    collector = Collector(lambda: [w])
    x = torch.randn(10, 2)
    for part in x.split(4):
        multiply(collector, part, w).sum().backward()
    assert collector.take()["x"].n == 10
    assert collector.take() == {}
    for discard in (_to_none, _to_zero):
        for part in x.split(4):
            discard(w)
            multiply(collector, part, w).sum().backward()
        taken = collector.take()["x"]
        assert taken.n == 2
        torch.testing.assert_close(taken.mean, x[8:].mean(0))


def test_no_value_is_looked_at_to_drop_rows() -> None:
    """On a GPU that would wait for it; a tensor on the meta device has none to look at."""
    w = nn.Parameter(torch.ones(2, device="meta"))
    collector = Collector(lambda: [w])
    for _ in range(2):
        y = multiply(collector, torch.ones(10, 2, device="meta"), w)
        y.sum().backward(retain_graph=True)
        _to_zero(w)
        y.sum().backward()
    assert collector.take()["x"].mean.shape == (2,)


@pytest.mark.parametrize("discard", [_to_none, _to_zero])
def test_a_backward_pass_that_fails_is_forgotten(discard: Callable[[Tensor], None]) -> None:
    def fail(grad: Tensor) -> None:
        raise ArithmeticError

    w = nn.Parameter(torch.ones(2))
    collector = Collector(lambda: [w])
    x = torch.randn(10, 2)
    broken = (x * w).requires_grad_()
    broken.register_hook(fail)
    with pytest.raises(ArithmeticError):
        multiply(collector, x + 5, broken).sum().backward()
    w.grad = torch.zeros(2)
    discard(w)
    multiply(collector, x, w).sum().backward()
    assert collector.take()["x"].n == 10


@pytest.mark.parametrize("before", [True, False])
def test_a_gradient_of_the_input_alone_does_not_count(before: bool) -> None:
    w = nn.Parameter(torch.ones(2))
    collector = Collector(lambda: [w])
    x, other = torch.randn(10, 2), torch.randn(7, 2, requires_grad=True)
    if before:
        multiply(collector, x, w).sum().backward()
    torch.autograd.grad(multiply(collector, other, w).sum(), other)
    multiply(collector, other, w).sum().backward(inputs=[other])
    if not before:
        assert not collector.reached
        multiply(collector, x, w).sum().backward()
    assert collector.take()["x"].n == 10
    # but that of the weight does, and what is differentiated again
    torch.autograd.grad(multiply(collector, other, w).sum(), w)
    assert collector.take()["x"].n == 7
    multiply(collector, other, w).sum().backward(inputs=[w])
    assert collector.take()["x"].n == 7
    (g,) = torch.autograd.grad(multiply(collector, other, w).sum(), other, create_graph=True)
    g.square().sum().backward()
    assert collector.take()["x"].n == 7


@pytest.mark.parametrize("set_to_none", [True, False])
def test_what_is_differentiated_again_counts_beside_what_is_not(set_to_none: bool) -> None:
    """As in losses with derivatives of the network and its values elsewhere."""
    w = nn.Parameter(torch.ones(2))
    w.grad = None if set_to_none else torch.zeros(2)
    collector = Collector(lambda: [w])
    inside, edge = torch.randn(10, 2, requires_grad=True), torch.randn(3, 2)
    # its derivative does not depend on its value, so the last pass does not come by here again
    u = multiply(collector, inside, w).sum()
    (du,) = torch.autograd.grad(u, inside, create_graph=True)
    (du.square().sum() + multiply(collector, edge, w).sum()).backward()
    assert collector.take()["x"].n == 13
    # what was taken is gone, also for the next step
    multiply(collector, edge, w).sum().backward()
    assert collector.take()["x"].n == 3


def test_many_gradients_at_a_time_do_not_count() -> None:
    w = nn.Parameter(torch.ones(2))
    collector = Collector(lambda: [w])
    y = multiply(collector, torch.randn(3, 2), w)
    torch.autograd.grad(y, w, torch.ones(4, 3, 2), is_grads_batched=True, retain_graph=True)
    assert collector.take() == {}
    y.sum().backward()
    assert collector.take()["x"].n == 3


def test_two_outputs_count_together() -> None:
    """Gradients of several outputs of one pass come one by one, and make one set of rows."""
    w = torch.ones(2, requires_grad=True)
    x = torch.arange(8.0).view(4, 2)
    for used in ((0,), (1,), (0, 1)):
        w.grad = None
        collector = Collector(lambda: [w])
        outputs = [x[:2] * w, x[1:] * w]

        def rows(grads: Sequence[Tensor | None]) -> dict[str, Rows]:
            first, second = grads
            mask = torch.zeros(4, dtype=torch.bool)
            if first is not None:
                mask[:2] |= reached(first)
            if second is not None:
                mask[1:] |= reached(second)
            return {"x": Rows(x, mask)}

        collector.record(Observation(outputs, rows))
        total: Any = sum(outputs[i].sum() for i in used)
        total.backward()
        expected = {(0,): x[:2], (1,): x[1:], (0, 1): x}[used]
        taken = collector.take()["x"]
        assert taken.n == len(expected)
        torch.testing.assert_close(taken.mean, expected.mean(0))


def test_outputs_without_gradients_are_passed_over() -> None:
    collector = Collector(list)
    collector.record(Observation([torch.ones(2)], lambda grads: {}))
    assert collector.take() == {}
    assert not collector.reached
