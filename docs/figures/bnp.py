"""Loss over steps of gradient descent, and eigenvalues of the Hessian, with and without BNP."""

import torch
from _style import BLUE, RED, figure, tidy
from matplotlib.figure import Figure
from torch import nn

import cayley
from cayley.diagnostics import condition_numbers


def draw() -> Figure:
    picture, (left, right) = figure(2, size=(8.4, 3.4))
    torch.manual_seed(0)
    # features with means and scales of their own
    x = torch.randn(200, 8, dtype=torch.float64) * torch.logspace(-1, 0.5, 8) + 2
    y = x @ torch.randn(8, 1, dtype=torch.float64) / x.std()
    for name, color in (("SGD", RED), ("SGD + BNP", BLUE)):
        torch.manual_seed(1)
        model = nn.Linear(8, 1, dtype=torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.4 if name != "SGD" else 8e-3)
        if name != "SGD":
            cayley.BNP(model, eps=1e-3).attach(optimizer)
        losses = []
        for _ in range(60):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        left.semilogy(losses, color=color, label=f"{name}, rate {optimizer.defaults['lr']}")
    tidy(left, xlabel="step", ylabel="loss", title="a linear layer, fitted")
    left.legend(frameon=False)
    model = nn.Linear(8, 1, dtype=torch.float64)
    found = condition_numbers(model, lambda: (model(x) - y).square().mean(), "", eps=1e-3)
    for name, part, color in (
        ("plain", found.plain, RED),
        ("with BNP", found.preconditioned, BLUE),
    ):
        values = part.eigenvalues.abs().sort(descending=True).values
        label = f"{name}: condition {float(part.condition):.3g}"
        right.semilogy(values, "o-", markersize=4, color=color, label=label)
    tidy(right, xlabel="index", ylabel="eigenvalue of the Hessian")
    right.legend(frameon=False)
    return picture
