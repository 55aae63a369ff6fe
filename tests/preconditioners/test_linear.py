"""The rule for linear layers, through the preconditioner."""

import pytest
import torch
from gradients import grad_of
from preconditioners.explicit import backward, gradients, preconditioned
from torch import nn

from cayley.preconditioners import BNP

EPS = 0.05


@pytest.mark.parametrize("shape", [(5,), (7, 5), (4, 3, 5), (2, 3, 2, 5)])
def test_equals_P_Pt_for_any_leading_axes(shape: tuple[int, ...]) -> None:
    layer = nn.Linear(5, 3)
    bnp = BNP(layer, eps=EPS)
    x = torch.randn(shape) * 2 + 1
    backward(layer(x))
    before = gradients(layer)
    bnp.step()
    b, (W,) = preconditioned(before["bias"], [before["weight"]], [x.reshape(-1, 5)], EPS)
    torch.testing.assert_close(layer.weight.grad, W, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(layer.bias.grad, b, rtol=1e-12, atol=1e-12)


def test_one_step_is_that_of_the_layer_with_normalised_inputs() -> None:
    layer, x, lr = nn.Linear(5, 3), torch.randn(20, 5) * 3 - 2, 0.1
    mu, sigma = x.mean(0), (x.var(0, correction=0) + EPS).sqrt()
    normalised = nn.Linear(5, 3)
    with torch.no_grad():
        normalised.weight.copy_(layer.weight * sigma)
        normalised.bias.copy_(layer.bias + layer.weight @ mu)
    bnp = BNP(layer, eps=EPS)
    for _ in range(3):
        for module, rows in ((layer, x), (normalised, (x - mu) / sigma)):
            module.zero_grad()
            module(rows).tanh().square().mean().backward()
        bnp.step()
        for module in (layer, normalised):
            torch.optim.SGD(module.parameters(), lr=lr).step()
        torch.testing.assert_close(layer(x), normalised((x - mu) / sigma), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("how", ["none", "frozen", "no gradient"])
def test_without_a_live_bias_nothing_is_centred(how: str) -> None:
    layer = nn.Linear(5, 3, bias=how != "none")
    bnp = BNP(layer, eps=EPS)
    if how == "frozen":
        layer.bias.requires_grad_(False)
    x = torch.randn(9, 5) + 1
    backward(layer(x))
    if how == "no gradient":
        layer.bias.grad = None
    G = grad_of(layer.weight).clone()
    bnp.step()
    torch.testing.assert_close(
        layer.weight.grad, G / (x.square().mean(0) + EPS), rtol=1e-12, atol=1e-12
    )
    if how == "frozen":
        assert bnp.report()["bias"] == "frozen"
        assert layer.bias.grad is None


def test_a_frozen_weight_leaves_the_bias_alone() -> None:
    layer = nn.Linear(5, 3)
    bnp = BNP(layer)
    layer.weight.requires_grad_(False)
    backward(layer(torch.randn(9, 5)))
    g = grad_of(layer.bias).clone()
    bnp.step()
    assert torch.equal(grad_of(layer.bias), g)
    assert bnp.report() == {"weight": "frozen", "bias": "its weight is frozen"}


def test_rows_that_do_not_reach_the_loss_do_not_count() -> None:
    layer, x = nn.Linear(5, 3), torch.randn(4, 6, 5)
    bnp = BNP(layer, eps=EPS)
    there = torch.arange(6) < torch.tensor([[6], [2], [4], [1]])
    padded = x.where(there[..., None], 100.0)
    layer(padded).square()[there].sum().backward()
    before = gradients(layer)
    bnp.step()
    b, (W,) = preconditioned(before["bias"], [before["weight"]], [x[there]], EPS)
    torch.testing.assert_close(layer.weight.grad, W, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(layer.bias.grad, b, rtol=1e-12, atol=1e-12)


def test_input_by_keyword() -> None:
    layer, x = nn.Linear(5, 3), torch.randn(8, 5)
    bnp = BNP(layer, eps=EPS)
    backward(layer(input=x))
    before = gradients(layer)
    bnp.step()
    _, (W,) = preconditioned(before["bias"], [before["weight"]], [x], EPS)
    torch.testing.assert_close(layer.weight.grad, W)


def test_constant_and_dead_features_stay_bounded() -> None:
    layer, x = nn.Linear(3, 2), torch.randn(10, 3)
    x[:, 0], x[:, 1] = 7.0, 0.0
    bnp = BNP(layer, eps=1e-8)
    backward(layer(x))
    bnp.step()
    # the numerator is the covariance with the feature: 0 but for rounding
    assert grad_of(layer.weight)[:, :2].abs().max() < 1e-5
    assert grad_of(layer.weight)[:, 2].abs().min() > 1e-3
