"""Products with Hessians against dense ones, and condition numbers that are known."""

from typing import Literal

import pytest
import torch
from preconditioners.explicit import P
from torch import Tensor, nn

import cayley
from cayley.diagnostics.curvature import (
    condition_numbers,
    gauss_newton_product,
    hessian_product,
)


def test_hessian_products_equal_the_dense_hessian() -> None:
    x, w = torch.randn(7, 3), torch.randn(3, requires_grad=True)
    b = torch.randn((), requires_grad=True)

    def loss(w: Tensor, b: Tensor) -> Tensor:
        return (x @ w + b).tanh().square().mean()

    product = hessian_product(loss(w, b), [w, b])
    dense = torch.stack([product(row) for row in torch.eye(4)])
    (ww, wb), (bw, bb) = torch.autograd.functional.hessian(loss, (w, b))
    expected = torch.cat((torch.cat((ww, wb[:, None]), 1), torch.cat((bw, bb[None]))[None]))
    torch.testing.assert_close(dense, expected)


def test_gauss_newton_products_equal_the_dense_ones() -> None:
    x, w = torch.randn(7, 3), torch.randn(3, requires_grad=True)

    def model(w: Tensor) -> Tensor:
        return (x @ w).tanh()

    y = model(w)
    product = gauss_newton_product(y, (y**4).sum(), [w])
    J = torch.autograd.functional.jacobian(model, w)
    expected = J.T @ torch.diag(12 * y.detach() ** 2) @ J
    torch.testing.assert_close(torch.stack([product(row) for row in torch.eye(3)]), expected)


def test_linear_losses_have_no_curvature() -> None:
    w = torch.randn(3, requires_grad=True)
    assert not hessian_product(w.sum(), [w])(torch.ones(3)).any()
    y = 2 * w
    assert not gauss_newton_product(y, y.sum(), [w])(torch.ones(3)).any()


def test_a_diagonal_hessian_has_its_condition_number() -> None:
    """Rows ±s_j e_j make H = 2 diag(s²)/N, and BNP with ε = 0 makes it 1."""
    s = torch.tensor([1.0, 2.0, 10.0])
    x = torch.cat((torch.diag(s), -torch.diag(s)))
    layer = nn.Linear(3, 1, bias=False)
    found = condition_numbers(layer, lambda: layer(x).square().mean(), "", eps=0.0)
    torch.testing.assert_close(found.plain.condition, torch.tensor(100.0))
    torch.testing.assert_close(found.plain.eigenvalues, 4 * s.square() / 6)
    torch.testing.assert_close(found.preconditioned.condition, torch.tensor(1.0))


@pytest.mark.parametrize("block", ["hessian", "gauss_newton"])
def test_equals_the_explicit_preconditioner(block: Literal["hessian", "gauss_newton"]) -> None:
    """For a linear layer and a quadratic loss H = 2 ĤᵀĤ/N, with and without P."""
    x = 3 + torch.randn(40, 4) * torch.tensor([0.1, 1.0, 5.0, 1.0])
    layer = nn.Sequential(nn.Linear(4, 1))

    def compute() -> Tensor | tuple[Tensor, Tensor]:
        y = layer(x)
        loss = y.square().mean()
        return (y, loss) if block == "gauss_newton" else loss

    found = condition_numbers(layer, compute, "0", block=block, eps=0.1)
    rows = torch.cat((torch.ones(40, 1), x), 1)
    H = 2 * rows.T @ rows / 40
    matrix = P([x], 0.1)
    torch.testing.assert_close(found.plain.eigenvalues, torch.linalg.eigvalsh(H))
    expected = torch.linalg.eigvalsh(matrix.T @ H @ matrix)
    torch.testing.assert_close(found.preconditioned.eigenvalues, expected)
    torch.testing.assert_close(found.preconditioned.condition, expected[-1] / expected[0])
    assert found.preconditioned.condition < found.plain.condition


def test_a_model_with_bnp_and_a_recurrent_layer() -> None:
    model = nn.ModuleDict({"rnn": cayley.RNN(2, 3, nonlinearity="tanh"), "head": nn.Linear(3, 1)})
    bnp = cayley.BNP(model)
    x = 1 + torch.randn(4, 20, 2)

    def loss() -> Tensor:
        return model["head"](model["rnn"](x)[0]).square().mean()

    found = condition_numbers(model, loss, "rnn")
    rnn = model["rnn"]
    names, sizes = zip(*((name, p.numel()) for name, p in rnn.named_parameters()), strict=True)

    def flat_loss(flat: Tensor) -> Tensor:
        parts = zip(names, flat.split(sizes), strict=True)
        own = {name: part.view_as(rnn.get_parameter(name)) for name, part in parts}
        return model["head"](torch.func.functional_call(rnn, own, (x,))[0]).square().mean()

    flat = torch.cat([p.detach().flatten() for p in rnn.parameters()])
    values = torch.linalg.eigvalsh(torch.func.hessian(flat_loss)(flat)).abs()
    # the two biases count as one: the others are 0
    expected = values.max() / values.sort().values[3]
    torch.testing.assert_close(found.plain.condition, expected)
    assert found.preconditioned.eigenvalues.isfinite().all()
    hooks = len(model["rnn"]._forward_hooks)
    bnp.remove()
    assert hooks == 1, "that of BNP alone"
    assert all(p.grad is None for p in model.parameters())


def test_errors_say_what_can_be_served() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    other, x = torch.ones(2, requires_grad=True), torch.randn(5, 2)
    with pytest.raises(TypeError, match=r"one of \[.*'Linear'.*got BatchNorm1d"):
        condition_numbers(model, lambda: model(x).sum(), "1")
    with pytest.raises(ValueError, match=r"one of \['', '0', '1'\], got 'rnn'"):
        condition_numbers(model, lambda: model(x).sum(), "rnn")
    with pytest.raises(TypeError, match="returns outputs and loss"):
        condition_numbers(model, lambda: model(x).sum(), "0", block="gauss_newton")
    with pytest.raises(ValueError, match="depends on 0"):
        condition_numbers(model, lambda: other.square().sum(), "0")
