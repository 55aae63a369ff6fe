"""What is known about what torch does with our operations."""

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from cayley.tracing import computes_now, has_tangent, needs_loop, traced


def test_numbers_are_computed_where_nobody_looks() -> None:
    x = torch.zeros(2)
    assert computes_now(x)
    assert not traced(x)
    assert not has_tangent(x)
    assert not needs_loop(x, None)


def test_transforms_need_a_loop() -> None:
    seen = []

    def look(x: Tensor) -> Tensor:
        seen.append((needs_loop(x, None), traced(x), computes_now(x)))
        return x.sum()

    x = torch.zeros(2)
    torch.func.grad(look)(x)
    torch.func.vmap(look)(x[None])
    torch.func.jvp(look, (x,), (x,))
    assert seen == [(True, True, False)] * 3


def test_tangents_need_a_loop() -> None:
    x, W = torch.zeros(2), torch.eye(2)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x)
        assert has_tangent(dual)
        assert needs_loop(W, None, dual)
        assert not needs_loop(W, x)
        # an operator may compute with it all the same, where it has nothing to differentiate
        assert not traced(dual)
    assert not needs_loop(x, W)


def test_compiled_code_has_no_tangents() -> None:
    compiled = torch.compile(lambda x: x + needs_loop(x), backend="eager", fullgraph=True)
    assert compiled(torch.zeros(1)).item() == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_traces_of_torch_jit_are_traces() -> None:
    seen = []

    def look(x: Tensor) -> Tensor:
        seen.append((traced(x), computes_now(x)))
        return x + 1

    torch.jit.trace(look, (torch.zeros(1),), check_trace=False)
    assert seen == [(True, False)]
