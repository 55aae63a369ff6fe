"""What the operators in C hand to one another: the loop's, so that back ends can be mixed."""

import sys

import pytest
import torch
from torch import Tensor

import cayley.recurrences  # noqa: F401 (makes the operators)
from cayley.kernels.calls import GruCall, GruGradients
from cayley.kernels.operator import Operator

LENGTHS = torch.tensor([3, 3, 2, 1])


@pytest.mark.parametrize("threshold", [True, False], ids=["modrelu", "tanh"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("batch_sizes", [None, LENGTHS], ids=["dense", "packed"])
@pytest.mark.parametrize("H", [1, 21])
@pytest.mark.parametrize("features", [None, 2])
def test_gates_and_their_gradients_are_those_of_the_loop(
    threshold: bool, reverse: bool, batch_sizes: Tensor | None, H: int, features: int | None
) -> None:
    shape = (4, 3) if batch_sizes is None else (9,)
    h0, W = torch.randn(3, H), torch.randn(3 * H, H) / H**0.5
    U = None if features is None else torch.randn(3 * H, features)
    b = torch.randn(H) if threshold else None
    x = torch.randn(*shape, 3 * H if features is None else features)
    call = GruCall(x, h0, W, b, U, None, batch_sizes, reverse)
    operator: Operator = sys.modules["cayley.recurrences.gru"]._gru
    loop, native = (operator.forward(call, backend) for backend in ("reference", "cpu"))
    torch.testing.assert_close((*native,), (*loop,))
    needed = ["x", "h0", "W"] + ["b"] * threshold + ["U"] * (U is not None)
    for grad_gates in (None, torch.randn(*shape, 3 * H)):
        gradients = GruGradients(torch.randn(*shape, H), grad_gates)
        found, expected = (
            operator.backward(gradients, loop, call, needed, name) for name in ("cpu", "reference")
        )
        for name in needed:
            torch.testing.assert_close(found[name], expected[name])
